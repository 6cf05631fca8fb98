# An engine's own image with otela beside it, for nodes that wrap their engine:
#
#   docker build -f deploy/docker/worker.Dockerfile --build-arg OTELA=otela --build-arg ENGINE=vllm/vllm-openai:v0.11.0 \
#       -t otela-worker deploy/docker
#
# The engine's image needs glibc 2.35 or newer (Ubuntu 22.04, Debian 12) and libgcc, as all of them have.
ARG OTELA=otela
ARG ENGINE=vllm/vllm-openai:v0.11.0

FROM ${OTELA} AS otela

FROM ${ENGINE}
COPY --from=otela /usr/local/bin/otela /usr/local/bin/otela
# Engines ask for the user's name and keep weights and what they compile below its home; this number has neither in their
# images. A new volume that is mounted here takes over whose the folder is.
COPY --from=otela --chown=65532:65532 /var/lib/otela /var/cache/engine
ENV HOME=/var/cache/engine USER=otela LOGNAME=otela
USER 65532:65532
EXPOSE 7411/tcp 7411/udp 9411/tcp
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/otela"]
