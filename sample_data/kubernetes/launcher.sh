#!/bin/sh
# Runs a command, and runs it anew when Greylag asks for a restart of the job's processes (restart_process). For a container's command:
#
#   launcher.sh FILE COMMAND...      FILE: /etc/greylag/NAME, of the ConfigMap `greylag-restarts`, mounted as a volume (no subPath)
#
# The kubelet changes the file within a minute or two after Greylag wrote it; another text in it = start anew. The command gets
# SIGTERM, and SIGKILL after GREYLAG_GRACE_SECONDS (30). A command that ends by itself ends the launcher, with its exit status.
file=$1
shift
said() { cat "$file" 2>/dev/null || true; }
known=$(said)
trap 'kill -TERM "$child" 2>/dev/null; wait "$child"; exit $?' TERM INT
while :; do
    "$@" &
    child=$!
    while kill -0 "$child" 2>/dev/null && [ "$(said)" = "$known" ]; do sleep "${GREYLAG_LOOK_SECONDS:-2}"; done
    if ! kill -0 "$child" 2>/dev/null; then
        wait "$child"
        exit $?
    fi
    known=$(said)
    echo "greylag: restart of the processes ($known)" >&2
    kill -TERM "$child"
    waited=0
    while kill -0 "$child" 2>/dev/null && [ "$waited" -lt "${GREYLAG_GRACE_SECONDS:-30}" ]; do sleep 1; waited=$((waited + 1)); done
    kill -KILL "$child" 2>/dev/null
    wait "$child"
done
