# A server from the wheel. Build: docker build --tag ropewalk .
# Run:   docker run --publish 8080:8080 --env ROPEWALK_SECRET=… ropewalk
# Without a secret (or --public and the like) it does not start: nothing is open that nobody asked for.

FROM python:3.11-slim-bookworm AS build
WORKDIR /source
COPY . .
# What docs/install.md lists; `--build-arg EXTRAS=redis` makes a small image without the journal.
ARG EXTRAS=journal,redis,enats,grpc
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
 && python -m venv /opt/ropewalk \
 && /opt/ropewalk/bin/pip install --no-cache-dir --constraint constraints.txt "$(ls /wheels/*.whl)[$EXTRAS]"

FROM python:3.11-slim-bookworm
COPY --from=build /opt/ropewalk /opt/ropewalk
RUN useradd --system --uid 1001 --home-dir /var/lib/ropewalk --create-home ropewalk \
 && chmod 700 /var/lib/ropewalk
ENV PATH=/opt/ropewalk/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ROPEWALK_HOST=0.0.0.0
USER ropewalk
WORKDIR /var/lib/ropewalk
# For --data_dir /var/lib/ropewalk. Settings may be mounted at /etc/ropewalk/ropewalk.toml.
VOLUME ["/var/lib/ropewalk"]
EXPOSE 8080
# Whether it answers, and not whether all that it needs is up: a restart would not help, and would send everybody away.
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s --retries=3 CMD ["ropewalk", "health", "--live"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["ropewalk"]
CMD ["serve"]
