#!/bin/sh
# health.sh PROCESS: the health check of a container that runs this process of Holdfast.
#
# The engine starts it again one second after it ended. Until the process has answered once, the check waits for that:
# what depends on the process starts at once. From then on it asks twice a minute, and sleeps meanwhile, because each
# question starts an interpreter, and each check a process of the engine. An interval of the engine's own for the start
# would need Docker 25.
#
# /dev/shm is empty after each start of a container, and can be written where all else is read-only.
answered=/dev/shm/holdfast-answered-$1
if [ -e "$answered" ]; then
    sleep 29
    exec holdfast ping "$1"
fi
holdfast ping "$1" --wait --timeout-s 50 || exit 1
touch "$answered" || :
