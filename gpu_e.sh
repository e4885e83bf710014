export PYTHONPATH=.carry/lib:src:. PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=/tmp/inductor
timeout 100 python -m pytest -p no:cacheprovider -p no:benchmark -m gpu tests/nn/test_replay.py > /tmp/tests.log 2>&1; tail -12 /tmp/tests.log | cut -c1-250; cp /tmp/tests.log $OUT
