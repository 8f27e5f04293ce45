"""The permissions that cloudgpu needs, the policies that grant them, and checks of the caller's permissions."""
