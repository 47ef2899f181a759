#!/bin/sh
# Regenerate the committed stubs from the schema: proto/generate.sh [OUTPUT_DIR]
set -e
cd "$(dirname "$0")"
out=${1:-.}
"${PYTHON:-python}" -m grpc_tools.protoc -I . --python_out="$out" --pyi_out="$out" reduction/v1/reduction.proto
