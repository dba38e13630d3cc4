#!/usr/bin/env bash
# A federation of SuperNodes on this machine, as docs/deployment.md sets one up on several: TLS, SuperNode
# authentication, a folder of images per site. Then a run, and a prediction.
#
#   deployment/demo.sh [--images FOLDER] [--dir FOLDER] [--port PORT] [--keep]
#
#   --images FOLDER  a folder per site, in it a folder of images per class. Default: three sites of the built-in sample
#   --dir FOLDER     where certificates, keys and logs go; must not exist, and is deleted after a run that went well.
#                    Default: a temporary folder
#   --port PORT      of the SuperLink; the SuperNodes take those after it. Default: 8000
#   --keep           leave the federation up after the run, until Ctrl-C, and do not delete the folder
#
# Needs an environment in which `pip install -e .` was run, openssl and ssh-keygen. Nothing leaves the machine.
set -euo pipefail

DIR="" IMAGES="" PORT=8000 KEEP=false
while (($#)); do
  case "$1" in
    --images) IMAGES="$(cd "$2" && pwd)"; shift 2 ;;
    --dir) DIR="$2"; shift 2 ;;
    --port) PORT="$2"; shift 2 ;;
    --keep) KEEP=true; shift ;;
    *) echo "demo.sh: no such option: $1 (there are --images FOLDER, --dir FOLDER, --port PORT, --keep)" >&2; exit 2 ;;
  esac
done
sites=(site-a site-b site-c)
if [[ -n "$IMAGES" ]]; then
  sites=()
  for folder in "$IMAGES"/*/; do if [[ -d "$folder" ]]; then sites+=("$(basename "$folder")"); fi; done
  ((${#sites[@]})) || { echo "demo.sh: --images must have a folder per site, got none in $IMAGES" >&2; exit 2; }
  for site in "${sites[@]}"; do
    case "$site" in # files and folders of the script's own; what node-config could not quote
      ca | server | superlink | run | mezo | cache | flwr | *[\"\\]*)
        echo "demo.sh: a site must not be called $site" >&2; exit 2 ;;
    esac
    if ! compgen -G "$IMAGES/$site/*/" >/dev/null; then
      echo "demo.sh: a site must have a folder of images per class, got none in $IMAGES/$site" >&2; exit 2
    fi
  done
fi
if [[ -n "$DIR" ]]; then mkdir -p "$(dirname "$DIR")" && mkdir "$DIR" && DIR="$(cd "$DIR" && pwd)"; else DIR="$(mktemp -d)"; fi
cd "$(dirname "$0")/.."

# --- What was started here is ended here, by its process id, whatever happens. -------------------------------------
end() {
  local status=$?
  trap - EXIT INT TERM
  local pids
  pids="$(jobs -p)"
  # shellcheck disable=SC2086  # one word per process
  [[ -z "$pids" ]] || kill $pids 2>/dev/null || true
  wait
  if ((status)); then echo "demo.sh failed; logs are in $DIR" >&2; elif ! $KEEP; then rm -rf "$DIR"; fi
  exit "$status"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Start a command in the background, with a log and a file for its process id.
background() {
  local name="$1"; shift
  "$@" >"$DIR/$name.log" 2>&1 &
  echo $! >"$DIR/$name.pid"
}

# Wait until a line of a log matches, at most two minutes, and not if the process has ended.
wait_for() {
  local name="$1" line="$2"
  for _ in {1..600}; do
    if grep -qs "$line" "$DIR/$name.log"; then return; fi
    if ! kill -0 "$(cat "$DIR/$name.pid")" 2>/dev/null; then break; fi
    sleep 0.2
  done
  echo "demo.sh: $name did not say \"$line\":" >&2
  tail -n 20 "$DIR/$name.log" >&2
  exit 1
}

step() { echo; echo "== $*"; }

# --- 1. Nothing leaves this machine --------------------------------------------------------------------------------
export FLWR_HOME="$DIR/flwr"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export HF_HUB_OFFLINE=1
mkdir -p "$FLWR_HOME"
# Whatever tries to reach the network all the same finds a proxy that is not there.
unset http_proxy https_proxy all_proxy ALL_PROXY no_proxy
export HTTP_PROXY=http://127.0.0.1:9 HTTPS_PROXY=http://127.0.0.1:9 NO_PROXY=127.0.0.1,localhost

if [[ -z "$IMAGES" ]]; then
  OWN=false IMAGES="$DIR/images"
  step "images of three sites"
  python deployment/make_sites.py "$DIR"
else
  OWN=true
  step "sites: ${sites[*]}"
fi

step "certificates"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -sha256 -days 365 -nodes \
  -keyout "$DIR/ca.key" -out "$DIR/ca.crt" -subj "/CN=Federation" \
  -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes \
  -keyout "$DIR/server.key" -out "$DIR/server.csr" -subj "/CN=localhost" 2>/dev/null
printf '%s\n' "subjectAltName=DNS:localhost,IP:127.0.0.1" "authorityKeyIdentifier=keyid" \
  "basicConstraints=CA:FALSE" "keyUsage=critical,digitalSignature" "extendedKeyUsage=serverAuth" >"$DIR/server.ext"
openssl x509 -req -in "$DIR/server.csr" -CA "$DIR/ca.crt" -CAkey "$DIR/ca.key" -CAcreateserial -days 365 -sha256 \
  -extfile "$DIR/server.ext" -out "$DIR/server.pem" 2>/dev/null

step "SuperLink"
background superlink \
  flower-superlink --host 127.0.0.1 --port "$PORT" --database "$DIR/superlink.db" --enable-supernode-auth \
  --ssl-ca-certfile "$DIR/ca.crt" --ssl-certfile "$DIR/server.pem" --ssl-keyfile "$DIR/server.key" \
  --disable-runtime-dependency-installation
wait_for superlink "Uvicorn running on"
printf '%s\n' "[superlink.demo]" "address = \"127.0.0.1:$PORT\"" "root-certificates = \"$DIR/ca.crt\"" \
  >>"$FLWR_HOME/config.toml"

step "SuperNodes"
for site in "${sites[@]}"; do
  ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f "$DIR/$site.key"
  flwr supernode register "$DIR/$site.key.pub" demo --name "$site"
done
number=0
for site in "${sites[@]}"; do
  number=$((number + 1))
  background "$site" \
    fedstats node --superlink "127.0.0.1:$PORT" --port $((PORT + number)) \
    --root-certificates "$DIR/ca.crt" --auth-supernode-private-key "$DIR/$site.key" \
    --node-config "data-path=\"$IMAGES/$site\" cache-dir=\"$DIR/cache/$site\""
done
for site in "${sites[@]}"; do wait_for "$site" "SuperNode ID: "; done
flwr supernode list demo

if $OWN; then
  step "run: heads in closed form"
  flwr run . demo --stream -c "min-clients=${#sites[@]} wait-timeout=300 reply-timeout=3600" | tee "$DIR/run.log"
else
  step "run: heads in closed form, then two rounds of fine-tuning the best"
  flwr run . demo --stream -c "input-size=64 min-clients=3 wait-timeout=300 fine-tune='probe' num-server-rounds=2 evaluate-every=2" | tee "$DIR/run.log"
fi
RUN="$(tail -n 1 "$DIR/run.log")"
[[ -d "$RUN" ]] || exit 1 # flwr run exits with 0 also when the run failed; then its last line says why

if $OWN; then
  step "The heads are there. For a new image: fedstats predict $RUN picture.png"
else
  step "predict"
  python -m fedstats_app.cli predict "$RUN" "$DIR/new.png"

  step "run: fine-tuning without sending weights (FedMeZO), scored on the server's own images"
  flwr run . demo --stream -c "input-size=64 min-clients=3 wait-timeout=300 fine-tune='fedmezo' fedmezo-temperature=1.8 fedmezo-learning-rate=0.0005 num-server-rounds=2 evaluate-every=2 test-dataset='folder:$DIR/server'" | tee "$DIR/mezo.log"
  [[ -d "$(tail -n 1 "$DIR/mezo.log")" ]] || exit 1
fi

if $KEEP; then
  step "The federation is up: FLWR_HOME=$FLWR_HOME flwr run . demo --stream. Ctrl-C ends it."
  trap 'exit 0' INT TERM
  while kill -0 "$(cat "$DIR/superlink.pid")" 2>/dev/null; do sleep 1; done
  exit 1
fi
