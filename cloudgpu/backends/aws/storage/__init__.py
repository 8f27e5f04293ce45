"""Create, find and delete storage on AWS and on the rehearsal cloud."""
