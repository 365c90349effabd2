#!/usr/bin/env bash
# Builds and runs the benchmarks. They print ratios against peers that run side
# by side on this machine; absolute times mean little elsewhere.
set -eu
cd "$(dirname "$0")/.."
go build -o bin/sbx-bench ./bench
exec bin/sbx-bench -sbx bin/sbx "$@"
