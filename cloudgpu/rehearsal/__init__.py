"""The rehearsal cloud: a strict simulated AWS on this machine, whose instances are real SSH hosts.

The route from a call of AWS to the boot of a node leaves what an editor can follow, and crosses two processes. boto3
sends the `create_fleet` of `cloudgpu/aws/resources/fleet.py`, for example, to the rehearsal server.

In the rehearsal server (`server/main.py`, one process per state home):
    `server/endpoint.py` verifies the signature, applies API faults, and holds the lock while the call is executed.
    `aws_api/simulated_cloud.py` holds the state and hides recent tags from searches: `SimulatedCloud.execute`.
    `server/services.py` chooses the service by the signature: `ServiceRouter.route`. EC2 is a subclass of moto's.
    `aws_api/ec2/backend.py` looks up the action in `_ALL_RULES`; moto carries out an action without a rule.
    `aws_api/ec2/fleets.py` registers the rule of `CreateFleet`, which chooses the pools of capacity.
    `aws_api/ec2/instances.py` creates pending instances in moto: `launch`. The response is sent without their nodes.
    `aws_api/ec2/instance_lifecycle.py` boots each node in a background thread (`NodeKeeper`); then it runs.
    `nodes/host_client.py` sends one JSON line to the node host's socket, and starts the host if none is running.

In the node host (`nodes/host.py`, one process for all nodes of a state home, which outlives the server):
    `nodes/control.py` looks up the operation, here `start`.
    `nodes/hosted_nodes.py` creates the node's record, disk and host key, and binds its address.
    `nodes/node.py` starts the node's init process and its servers: `SimulatedNode.power_on`.
    `nodes/boot.py` runs the user data as cloud-init does, in processes of the node's namespaces.
"""
