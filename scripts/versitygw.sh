#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Print the path of versitygw, a real S3 server for tests. The first call builds it from its sources into the cache of the
# user, which takes minutes; calls at the same time wait for the one that builds.
set -euo pipefail
version=v1.8.0
dir=${XDG_CACHE_HOME:-$HOME/.cache}/phalanx/bin
bin=$dir/versitygw-$version
if [[ ! -x $bin ]]; then
    mkdir -p "$dir"
    exec 9>"$dir/versitygw.lock"
    flock 9
    if [[ ! -x $bin ]]; then # another call may have built it meanwhile
        echo "building versitygw $version, once; this takes minutes" >&2
        new=$(mktemp -d "$dir/build-XXXXXX")
        trap 'rm -rf "$new"' EXIT
        # The flags of a surrounding make are those of another module.
        GOFLAGS='' GOBIN=$new CGO_ENABLED=0 "${GO:-go}" install -trimpath "github.com/versity/versitygw/cmd/versitygw@$version" >&2
        mv "$new/versitygw" "$bin" # appears whole
    fi
fi
echo "$bin"
