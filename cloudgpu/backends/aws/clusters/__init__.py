"""Create, extend and delete clusters on AWS and on the rehearsal cloud."""
