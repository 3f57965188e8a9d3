# Built by `make image`, which lays out root/ (what is root's) and scratch/
# beside this file: the static binary and empty directories.
FROM scratch
LABEL org.opencontainers.image.title="containerdisk" \
      org.opencontainers.image.description="Find an image, make it a disk, put the disk on a wire." \
      org.opencontainers.image.source="https://github.com/containerdisk/containerdisk" \
      org.opencontainers.image.licenses="Apache-2.0"
# /containerdisk, /LICENSE; /disk, where the disk image goes: ADD fedora.qcow2
# /disk/; /tmp, for the health file.
COPY root/ /
# Where the expanded disk goes; mount a volume here. 107 is qemu's user in KubeVirt.
COPY --chown=107:107 scratch/ /scratch/
ENV SCRATCH_DIR=/scratch
USER 107:107
ENTRYPOINT ["/containerdisk"]
