#!/usr/bin/env bash
# List the third-party packages in the program: import paths, without versions.
set -euo pipefail
module=$(go list -m)
GOOS=linux GOARCH=amd64 CGO_ENABLED=0 go list -deps -f '{{if not .Standard}}{{.ImportPath}}{{end}}' ./cmd/... |
	grep -v "^$module\(/\|$\)" | LC_ALL=C sort
