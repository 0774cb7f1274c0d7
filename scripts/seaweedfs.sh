#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Print the path of weed, the server of SeaweedFS: a second real S3 server for long tests. The first call builds it from its
# sources into the cache of the user, which downloads 2 GB and takes a quarter of an hour; calls at the same time wait for the
# one that builds. Its go.mod has a `replace`, so `go install` refuses it: scripts/seaweedfs is a module that pins it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/seaweedfs"
# The binary is called by the module file, so another version of it is another binary.
version=$(sha256sum go.mod go.sum | sha256sum | head -c 12)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/phalanx/bin
bin=$dir/weed-$version
if [[ ! -x $bin ]]; then
    mkdir -p "$dir"
    exec 9>"$dir/weed.lock"
    flock 9
    if [[ ! -x $bin ]]; then # another call may have built it meanwhile
        echo "building SeaweedFS, once; this takes a quarter of an hour" >&2
        new=$(mktemp -d "$dir/build-XXXXXX")
        trap 'rm -rf "$new"' EXIT
        # The flags of a surrounding make are those of another module.
        GOFLAGS='' CGO_ENABLED=0 "${GO:-go}" build -trimpath -ldflags '-s -w' -o "$new/weed" github.com/seaweedfs/seaweedfs/weed >&2
        mv "$new/weed" "$bin" # appears whole
    fi
fi
echo "$bin"
