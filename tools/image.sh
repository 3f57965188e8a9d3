#!/usr/bin/env bash
# Build the container image from bin/containerdisk. No registry is asked: the
# image starts from scratch.
#   tools/image.sh DOCKER NAME
set -euo pipefail
cd "$(dirname "$0")/.."
docker=$1 name=$2

# The context holds what goes into the image and nothing of the tree.
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
install -d "$context/root" "$context/root/disk" "$context/scratch"
install -d -m 1777 "$context/root/tmp"
install -m 0755 bin/containerdisk "$context/root"
install -m 0644 LICENSE "$context/root"
install -m 0644 Dockerfile "$context"

$docker build -q -t "$name" \
	--label org.opencontainers.image.version="$(bin/containerdisk version --short)" \
	--label org.opencontainers.image.revision="$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
	"$context"
size=$($docker image inspect -f '{{.Size}}' "$name")
echo "$name: $((size / 1000 / 1000)) MB"
limit=20000000
if [ "$size" -ge "$limit" ]; then
	echo "image: $size bytes, the limit is $limit" >&2
	exit 1
fi
