#!/bin/sh
# Writes the CHAP vectors of this directory anew. The responses come from
# openssl, not from this package: response = H(id, secret, challenge), RFC 1994
# section 4.1. Secrets and challenges are derived from names, so that every run
# gives the same files.
set -eu
cd "$(dirname "$0")"

# bytes COUNT NAME: so many bytes, as hex.
bytes() { printf %s "$2" | openssl dgst -shake256 -xoflen "$1" -r | cut -d' ' -f1; }

# vector ALGORITHM DIGEST CASE ID SECRET CHALLENGE
vector() {
	cat >"chap-$2-$3.txt" <<EOF
# Origin: printf ID SECRET CHALLENGE | openssl dgst -$2 ($(openssl version | cut -d' ' -f1-2))
algorithm: $1
id: $4
secret: $5
challenge: $6
response: $(printf %s "$4$5$6" | xxd -r -p | openssl dgst "-$2" -r | cut -d' ' -f1)
EOF
}

for a in 5:md5 6:sha1 7:sha256 8:sha3-256; do
	number=${a%%:*} digest=${a#*:}
	vector "$number" "$digest" shortest 00 "$(bytes 12 secret)" "$(bytes 1 challenge)"
	vector "$number" "$digest" usual 27 "$(bytes 16 secret)" "$(bytes 32 challenge)"
	vector "$number" "$digest" longest ff "$(bytes 255 secret)" "$(bytes 1024 challenge)"
done
