# scdd in a container: docker build --target cuda (or cpu) -t scdd . See docs/scale/container.md.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim AS build
# Optional dependencies to install, and the index that torch comes from; empty: pip's own, whose build has CUDA.
ARG EXTRAS=train,serve
ARG TORCH_INDEX=
ENV PATH=/opt/scdd/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/scdd
# torch first, in a layer of its own: it is large and seldom changes.
COPY constraints.txt ./
RUN pip install -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install -c constraints.txt ".[${EXTRAS}]"

FROM python:${PYTHON}-slim AS cpu
RUN useradd --uid 1000 --create-home scdd && install --directory --owner=scdd /workspace
COPY --from=build /opt/scdd /opt/scdd
ENV PATH=/opt/scdd/bin:$PATH PYTHONUNBUFFERED=1
USER scdd
WORKDIR /workspace
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["scdd"]
# Refused without a token (SCDD_TOKEN): other machines can reach it.
CMD ["serve", "--host", "0.0.0.0"]

FROM cpu AS cuda
USER root
# Triton compiles a small launcher for each kernel, and torch.compile what runs on the CPU.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
USER scdd
