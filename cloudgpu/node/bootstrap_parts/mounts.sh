# Storage. Formatting a disk that contains data would destroy the data, so a disk is formatted only if blkid finds
# nothing on it and its first MiB contains only zeros.
appears() {
  waited=0
  until [ -e "$1" ]; do
    if [ "$waited" -ge 300 ]; then
      echo "$1 did not appear within $waited s"
      return 1
    fi
    sleep 2
    waited=$((waited + 2))
  done
}

format_if_empty() {
  code=0
  blkid -p "$1" || code=$?
  if [ "$code" -eq 0 ]; then
    return 0
  fi
  if [ "$code" -ne 2 ]; then
    echo "blkid exited with code $code: $1 is not formatted"
    return 1
  fi
  if [ "$(head -c 1048576 "$1" | tr -d '\000' | wc -c)" -ne 0 ]; then
    echo "$1 contains data without a file system: it is not formatted"
    return 1
  fi
  mkfs.ext4 -q -m 0 "$1"
}

# The root directory of a new file system belongs to root, so the ranks could not write to it.
open_to_all() {
  if [ "$(stat -c %u "$1")" -eq 0 ]; then
    chmod 1777 "$1"
  fi
}

# Prints the name of the node's role. s3fs 1.90, in Ubuntu 22.04 and 24.04, requests the name without the IMDSv2 token
# that nodes require, and then reports that it may not read the bucket; newer versions find the name without help.
role_of_node() {
  imds=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}
  ask="curl --silent --fail --max-time 5 --noproxy 169.254.169.254,127.0.0.1"
  {
    token=$($ask --request PUT --header "X-aws-ec2-metadata-token-ttl-seconds: 60" "$imds/latest/api/token") &&
      $ask --header "X-aws-ec2-metadata-token: $token" "$imds/latest/meta-data/iam/security-credentials/"
  } || echo auto
}

# package_from URL
package_from() {
  command -v curl || packages curl
  work=$(mktemp -d)
  fetch "$work/package.deb" "$1"
  packages "$work/package.deb"
  rm -rf "$work"
}
