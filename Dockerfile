# rocemu and tcpdump in one image: the daemons run as a user of their own, the sidecar captures.
ARG PYTHON_IMAGE=python:3.13-slim
FROM ${PYTHON_IMAGE}
RUN apt-get update -q \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends tcpdump \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN pip install --quiet --no-cache-dir --root-user-action=ignore . \
    && useradd --system --no-create-home rocemu
USER rocemu
ENTRYPOINT ["rocemu"]
