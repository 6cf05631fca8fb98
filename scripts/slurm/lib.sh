# shellcheck shell=bash
# What the scripts of this folder share. They only start things: how a node serves, drains and leaves is otela's own.
#
# Read from the environment:
#   OTELA                 the binary, if it is not on PATH
#   OTELA_PEER_BOOTSTRAP  whom to join through, HOST:PORT; or OTELA_PEER_VIA, a relay on the login node
#   OTELA_CONTAINER       what the engine runs in: apptainer, enroot or edf; nothing, if not set
#   OTELA_IMAGE           its image: a SIF file, a container of enroot, or the name of an environment (EDF)
#   OTELA_SCRIPTS         this folder, if Slurm does not tell where a script came from (sbatch < FILE)
#   OTELA_CHAIN_...       set by chain.sh

otela=${OTELA:-otela}

# In a job a script has another name.
die() {
    echo "otela: ${script:-${0##*/}}: $*" >&2
    exit 2
}

# Whoever forgets one of the two would find out an hour later.
need_bootstrap() {
    [[ -n ${OTELA_PEER_BOOTSTRAP:-}${OTELA_PEER_VIA:-}${OTELA_PEER_MESH_FILE:-}${OTELA_CONFIG:-} ]] ||
        die "OTELA_PEER_BOOTSTRAP is not set: export it as HOST:PORT of a relay, OTELA_PEER_VIA as the address of one on the login node, or OTELA_CONFIG as a file that says it"
}

need_otela() {
    command -v "$otela" >/dev/null || die "no $otela on this node: put it on PATH, or export OTELA as its path on a file system that nodes see"
}

# Puts the words of the engine's command line into the array `engine`, inside of the container if there is to be one.
# shellcheck disable=SC2034 # whoever calls it reads the array
in_container() {
    [[ -z ${OTELA_CONTAINER:-} || $OTELA_CONTAINER =~ ^(apptainer|enroot|edf)$ ]] ||
        die "OTELA_CONTAINER=$OTELA_CONTAINER: there are apptainer, enroot and edf"
    [[ -z ${OTELA_CONTAINER:-} || -n ${OTELA_IMAGE:-} ]] ||
        die "OTELA_IMAGE is not set: for $OTELA_CONTAINER export it as a SIF file, the name of a container, or an environment"
    case ${OTELA_CONTAINER:-} in
        '') engine=("$@") ;;
        apptainer) engine=(apptainer exec --nv "$OTELA_IMAGE" "$@") ;;
        enroot) engine=(enroot start --rw "$OTELA_IMAGE" "$@") ;;
        edf) engine=(srun --overlap --ntasks=1 --environment="$OTELA_IMAGE" "$@") ;;
    esac
}

# Submits this job's successor, if it is one of a chain: so that it starts OTELA_CHAIN_OVERLAP seconds before this one takes no
# new requests, and only if there is none yet. In the background, because Slurm may have to be asked for long.
submit_successor() {
    [[ -n ${OTELA_CHAIN_SUBMIT:-} ]] || return 0
    if ((OTELA_CHAIN_LEFT <= 0)); then
        echo "chain: this is the last job of it" >&2
        return 0
    fi
    (
        until successor; do sleep 30; done
    ) &
}

successor() {
    local shown start end begin others submit drains
    others=$(squeue --me --noheader --name="$SLURM_JOB_NAME" --states=PENDING,CONFIGURING,RUNNING --format=%A) || return 1
    # Those with higher numbers come after this one; a job that was requeued has a successor already.
    if awk -v me="$SLURM_JOB_ID" '$1 > me { found = 1 } END { exit !found }' <<<"$others"; then return 0; fi
    shown=$(SLURM_TIME_FORMAT=%s scontrol show job --oneliner "$SLURM_JOB_ID") || return 1
    start=$(grep -oE ' StartTime=[0-9]+' <<<"$shown" | cut -d= -f2) || return 1
    end=$(grep -oE ' EndTime=[0-9]+' <<<"$shown" | cut -d= -f2) || return 1
    # As the node does by OTELA_START_DRAIN_BEFORE_END, and what its engine may take to end.
    drains=130
    if [[ ${OTELA_START_DRAIN_BEFORE_END:-} =~ ^([0-9]+)([smh])$ ]]; then
        case ${BASH_REMATCH[2]} in s) drains=1 ;; m) drains=60 ;; h) drains=3600 ;; esac
        drains=$((BASH_REMATCH[1] * drains + 10))
    fi
    ((drains <= (end - start) / 4)) || drains=$(((end - start) / 4))
    # Not before the half of this one, or there would be three at a time.
    begin=$((end - drains - OTELA_CHAIN_OVERLAP))
    ((begin >= (start + end) / 2)) || begin=$(((start + end + 1) / 2))
    begin=$((begin - $(date +%s)))
    eval "submit=($OTELA_CHAIN_SUBMIT)"
    OTELA_CHAIN_LEFT=$((OTELA_CHAIN_LEFT - 1)) sbatch --parsable --job-name="$SLURM_JOB_NAME" \
        --begin="now+$((begin > 0 ? begin : 0))" "${submit[@]}" >&2
}
