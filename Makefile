# psrt by one-word commands. `make help` lists them; nothing needs to be installed beforehand but
# python3 (3.11 or newer) and make.
#
# The MPI library is installed from PyPI into its own environment, independent of the system's. On a
# cluster use the cluster's: see hostfiles/.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.SUFFIXES:

# --- what you may set: make train MPI=mpich RANKS=8 SERVERS=3 MODE=ssp:staleness=2 --------

# openmpi or mpich.
MPI ?= openmpi
# The Python that creates the environment.
PYTHON ?= python3
# The job of `make train`, and what is added to any psrt command line.
MODE = sync
RANKS = $(if $(filter serial,$(MODE)),1,4)
# Two where that leaves a worker to each.
SERVERS = $(if $(filter serial allreduce local-sgd gossip,$(firstword $(subst :, ,$(MODE)))),0,$(if $(filter 1 2 3,$(RANKS)),1,2))
OUT = runs/train
ARGS =
# Of `make fuzz`: how many random jobs, jobs with faults, and changed files and frames, and the seed
# of the first.
JOBS = 2000
FAULTS = 10000
CASES = 100000
SEED = 0
# Where `make mutants` writes, and resumes.
FOUND = runs/mutants.jsonl
# How many times as long as on an idle machine tests may take before they are stopped: make test PATIENCE=3.
PATIENCE = 1
# Of the parallel tests: numbers of ranks, those of `make test`, and seconds that one launch may take.
RANK_COUNTS = 1 2 3 4 7 8
FEW_RANKS = 3
LAUNCH_TIMEOUT = 1200
PARALLEL = tests/parallel
# Those of them that are not about shared memory, less test_communicator_nonblocking, which takes the
# longest: `make test-cluster` has it under MPICH between hosts.
PARALLEL_ANYWHERE = $(addprefix tests/parallel/test_,$(addsuffix .py,agreement bench communicator_errors \
  communicator_lifecycle communicator_phases communicator_results jobs neighbours own_problem \
  reductions refusals))
# The tests of the command line, and those of them that start ranks.
E2E = tests/e2e
E2E_MPICH = $(addprefix tests/e2e/test_,$(addsuffix .py,runs errors ends faults survive replay launch checkpoints))
# What else is compared with torch. PyPI's is for GPUs, of gigabytes; this one is small:
# make test-oracles TORCH='torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu'
TORCH = torch==2.13.0
JAX = jax[cpu]==0.10.2
SKLEARN = scikit-learn==1.9.1
ORACLE_RANKS = 1 2 3 4
# What a landing runs; the rest is of test-long.
FEW = not exhaustive and not soak
# The tests without MPI, and of them what runs whole jobs, processes, or breaks the code.
PURE = tests/pure
NOT_QUICK = apps faults fuzz history job simulation views test_docs.py
# Only tests with this mark, or `not` with it, all if empty; what pytest tells of the slowest; processes
# at a time.
MARKED = $(FEW)
DURATIONS = --durations=10 --durations-min=1
PROCESSES = -n auto
# Tests that start ranks wait for them, or for a deadline, half of their time. Those that share a run
# are a group, which one process takes.
E2E_PROCESSES = --dist loadgroup -n $(shell unset OMP_NUM_THREADS; echo $$(($$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) + 1)))

# --- what differs between the vendors -----------------------------------------------------------

ifeq ($(MPI),openmpi)
  VENV := .venv
  # More ranks than cores are welcome, and no rank is tied to a core.
  MPIRUN_FLAGS = --oversubscribe --bind-to none
  export OMPI_ALLOW_RUN_AS_ROOT := 1
  export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
  # Its windows over UCX complain where there is no such hardware.
  export OMPI_MCA_osc := ^ucx
  # Its transport for one-sided traffic over libfabric sleeps for a second as each rank starts.
  export OMPI_MCA_btl ?= ^ofi
  # The same for users who call this environment's mpirun without make.
  SETTLE = if [ -d $(VENV)/etc ]; then \
    printf '%s\n' 'rmaps_default_mapping_policy = :oversubscribe' 'hwloc_default_binding_policy = none' \
      >$(VENV)/etc/prte-mca-params.conf; \
    printf '%s\n' 'osc = ^ucx' 'btl = ^ofi' >$(VENV)/etc/openmpi-mca-params.conf; fi
else ifeq ($(MPI),mpich)
  VENV := .venv-mpich
  # Accepts any number of ranks, and binds none, by default.
  MPIRUN_FLAGS =
  SETTLE = :
else
  $(error MPI=$(MPI) is not known, choose openmpi or mpich)
endif

# One BLAS thread a rank: the ranks are the parallelism.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
# Modules of a cluster may have set these; they would lead into another installation.
unexport PYTHONPATH PYTHONHOME OPAL_PREFIX
# Where containers set this, each rank compiles all of psrt: half of the time that it takes to start.
unexport PYTHONDONTWRITEBYTECODE
ifdef LD_LIBRARY_PATH
  export LD_LIBRARY_PATH := $(CURDIR)/$(VENV)/lib:$(CURDIR)/$(VENV)/lib/$(MPI):$(LD_LIBRARY_PATH)
endif

# Tests wait for the disk with thousands of small files; not in memory, where there are 4 GiB of it, and
# what lies there may be run. Asked for only by what needs it.
FILES = $(shell [ -w /dev/shm ] && grep -q ' /dev/shm tmpfs ' /proc/mounts && \
  ! grep -q ' /dev/shm tmpfs .*noexec' /proc/mounts && \
  [ $$(df -Pk /dev/shm | awk 'END {print $$4}') -ge 4194304 ] && echo /dev/shm || echo /tmp)
test-quick test-laws test-pure test-e2e $(RANK_COUNTS:%=test-parallel-%): export TMPDIR ?= $(FILES)

PY = $(VENV)/bin/python
MPIRUN = $(VENV)/bin/mpirun $(MPIRUN_FLAGS)
# Without a terminal to read from, and so that Ctrl-C still reaches what runs.
TIMEOUT = timeout --foreground --kill-after=10
# $1: seconds, $2: a command that may take as long.
define within
@echo "$@"
@limit=$$(($1 * $(PATIENCE))); $(TIMEOUT) $$limit $2 </dev/null || { status=$$?; \
  case $$status in 124 | 137) echo "$@ was stopped after $$limit s; on a busy machine give it more:" \
    "make $@ PATIENCE=$$((3 * $(PATIENCE)))" >&2 ;; esac; exit $$status; }
endef

# --- installation -------------------------------------------------------------------------------

.PHONY: help install train fuzz mutants lint docs-site report-faults report-kills
.PHONY: test test-mpich test-long test-all test-quick test-laws test-pure test-parallel test-e2e test-cluster test-slurm test-nolocal
.PHONY: test-oracles test-torch-alone $(ORACLE_RANKS:%=test-torch-%) test-browser test-packaging release
.PHONY: bench bench-step bench-allreduce bench-call bench-codec bench-targets bench-ps bench-keyed bench-train bench-pipeline
.PHONY: bench-parallelism bench-history bench-checkpoints bench-adapters bench-hosts bench-hosts-overlap bench-hosts-ps bench-plan bench-simulate
.PHONY: compare compress decentralize learners study calibrate plots clean distclean
.PHONY: $(RANK_COUNTS:%=test-parallel-%)

help:  ## list the commands
	@echo "make COMMAND [MPI=openmpi|mpich] [ARGS='flags for psrt']"
	@echo
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-21s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "make train also takes MODE=$(MODE) RANKS=$(RANKS) SERVERS=$(SERVERS) OUT=$(OUT)"

install: $(VENV)/.has-psrt  ## make the environment .venv (MPI=mpich: .venv-mpich) with psrt and an MPI

# Each stamp is younger than setup.py, or pip runs again.
$(VENV)/.has-psrt: EXTRAS = $(MPI),report
$(VENV)/.has-tests: EXTRAS = $(MPI),plot,report,test
$(VENV)/.has-lint: EXTRAS = $(MPI),plot,report,test,lint
$(VENV)/.has-plot: EXTRAS = $(MPI),plot,report
$(VENV)/.has-release: EXTRAS = $(MPI),test,lint,release
$(VENV)/.has-docs: EXTRAS = $(MPI),test,docs
$(VENV)/.has-mutants: EXTRAS = $(MPI),plot,report,test,mutants
$(addprefix $(VENV)/.has-,psrt tests lint plot release docs mutants): setup.py | $(PY)
	@echo "installing psrt-mpi[$(EXTRAS)] into $(VENV)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat \
	  --editable '.[$(EXTRAS)]'
	@$(SETTLE)
	@touch $@

$(PY):
	@command -v $(PYTHON) >/dev/null || { \
	  echo "psrt needs Python 3.11 or newer: no $(PYTHON) on the PATH; make PYTHON=... names another" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "psrt needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1); make PYTHON=... names another" >&2; \
	  exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
	  rm -rf $(VENV); \
	  package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "$(PYTHON) comes without venv: installing $$package"; \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$package; } >/dev/null; \
	  fi; \
	  $(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
	    rm -rf $(VENV); \
	    echo "psrt needs Python's venv with pip: as root, apt-get install $$package" >&2; \
	    exit 1; }; }

# --- training -----------------------------------------------------------------------------------

train: $(VENV)/.has-psrt  ## train on the handwritten digits: 2 servers, 2 workers
	$(MPIRUN) -n $(RANKS) $(PY) -m psrt train --mode $(MODE) --servers $(SERVERS) \
	  --dataset digits --out $(OUT) --overwrite $(ARGS)

compare: $(VENV)/.has-plot  ## every mode when workers are late: tables, a verdict, a plot
	$(MPIRUN) -n $(RANKS) $(PY) apps/compare_modes.py --out runs/compare $(ARGS)

study: $(VENV)/.has-plot  ## staleness of softsync and its effect on learning: a table and a plot
	$(PY) apps/staleness_study.py --out runs/staleness $(ARGS)

compress: $(VENV)/.has-plot  ## every codec on slow and fast links: tables, a verdict, a plot
	$(PY) apps/compression_study.py --out runs/compression $(ARGS)

decentralize: $(VENV)/.has-plot  ## topologies and partitions without a centre: tables, a plot
	$(PY) apps/decentralized_study.py --out runs/decentralized $(ARGS)

learners: $(VENV)/.has-plot  ## learners that do not wait for all: goodput, time to accuracy, merges: tables, plots
	$(PY) apps/learners_study.py --out runs/learners $(ARGS)

calibrate: $(VENV)/.has-psrt  ## compare simulations with the real runs that they predict
	$(MPIRUN) -n 3 $(PY) apps/calibrate.py --out runs/calibrate $(ARGS)

report-faults: $(VENV)/.has-psrt  ## stop and kill ranks: what is promised and seen, into docs/failures.md
	$(PY) apps/studies/faults.py

# In half an hour, into runs/kills.jsonl as well; with KILLS=0 what is there goes into the page again.
KILLS = 200
report-kills: $(VENV)/.has-psrt  ## kill random ranks of jobs that start again, into docs/benchmarks.md
	$(PY) apps/studies/kills.py --kills $(KILLS) $(ARGS)

plots: compare study  ## compare and study, into runs/compare and runs/staleness

# --- tests --------------------------------------------------------------------------------------

test:  ## all behaviour, in 4 minutes on 2 cores: laws, pure, under mpirun on 3 ranks, end to end
	@$(MAKE) --no-print-directory test-pure test-parallel test-e2e \
	  RANK_COUNTS='$(FEW_RANKS)' PURE='tests/laws tests/pure'

# What a landing does not wait for: state spaces, grids, other numbers of ranks, the rest of MPICH. The
# list is .ci/long.tsv.
test-long:  ## hours: tests that a landing does not wait for, the oldest result first; ARGS=--list says how old, ARGS=WORD runs some
	@$(PYTHON) .ci/long.py $(ARGS)

test-all: lint docs-site test test-mpich test-long test-cluster test-slurm test-nolocal test-oracles test-browser test-packaging  ## everything, with both MPIs

test-quick: $(VENV)/.has-tests  ## pure tests that run no whole job, in half a minute
	$(PY) -m pytest $(PROCESSES) -m '$(FEW)' $(NOT_QUICK:%=--ignore=tests/pure/%) tests/pure

test-laws: PURE = tests/laws
test-laws: test-pure  ## what holds for every job, in virtual time

test-pure: $(VENV)/.has-tests  ## tests without MPI
	$(PY) -m pytest $(PROCESSES) --dist loadgroup $(DURATIONS) $(if $(MARKED),-m '$(MARKED)') $(PURE)

test-parallel: $(RANK_COUNTS:%=test-parallel-%)  ## tests under mpirun; test-parallel-4: on 4 ranks only

# Open MPI tells every rank that it has a terminal, even where the output goes to a file.
COLOR = $(if $(MAKE_TERMOUT),,--color=no)

# -x: ranks that were out of step once may stay so; -s: what a rank says as it ends the job is seen.
$(RANK_COUNTS:%=test-parallel-%): test-parallel-%: $(VENV)/.has-tests
	$(call within,$(LAUNCH_TIMEOUT),$(MPIRUN) -n $* \
	  $(PY) -m pytest -x -s $(COLOR) $(DURATIONS) --with-mpi $(if $(MARKED),-m '$(MARKED)') $(PARALLEL))

test-e2e: $(VENV)/.has-tests  ## tests of the command line
	$(call within,1800,$(PY) -m pytest $(E2E_PROCESSES) $(DURATIONS) $(if $(MARKED),-m '$(MARKED)') $(E2E))

test-mpich:  ## main tests of the command line under MPICH; of its ranks' see test-nolocal
	@$(MAKE) --no-print-directory test-e2e MPI=mpich E2E='$(E2E_MPICH)'

# What the hosts that this machine plays need, and a Slurm on them. Where systemd runs, installing
# daemons would start them: there the tests say what to install.
HOSTS = openssh-server openssh-client iproute2 util-linux
SLURM = slurmctld slurmd slurm-client munge libpmix-dev
# $1: programs; $2: packages that have them.
define programs_for_root
@if [ "$$(id -u)" = 0 ]; then \
  PATH="$$PATH:/usr/sbin:/sbin"; \
  for program in $1; do command -v $$program || missing=1; done >/dev/null; \
  if [ -n "$$missing" ] && command -v apt-get >/dev/null && [ ! -d /run/systemd/system ]; then \
    echo "installing $2"; \
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
      --no-install-recommends $2; } >/dev/null || true; \
  fi; \
fi
endef
# And the environments of both MPIs.
define installed_for_root
$(call programs_for_root,$1,$2)
@if [ "$$(id -u)" = 0 ]; then \
  $(MAKE) --no-print-directory MPI=openmpi .venv/.has-tests && \
  $(MAKE) --no-print-directory MPI=mpich .venv-mpich/.has-tests; \
fi
endef

test-cluster: $(VENV)/.has-tests  ## tests of both MPIs on several hosts that this machine plays; as root
	$(call installed_for_root,sshd ssh ip tc unshare,$(HOSTS))
	$(call within,2400,$(PY) -m pytest -rs $(DURATIONS) $(if $(MARKED),-m '$(MARKED)') tests/cluster)

test-slurm: $(VENV)/.has-tests  ## tests of both MPIs in a Slurm of three nodes, on such hosts; as root
	$(call installed_for_root,slurmctld slurmd srun munged sshd ssh ip tc unshare,$(SLURM) $(HOSTS))
	$(call within,1200,$(PY) -m pytest -rs $(DURATIONS) $(if $(MARKED),-m '$(MARKED)') tests/slurm)

# Skipped where there is no browser. Chromium's shell is the smallest.
.PHONY: test-browser
test-browser: $(VENV)/.has-tests  ## tests of pages of HTML in a headless browser
	$(call programs_for_root,chromium-headless-shell,chromium-headless-shell)
	$(call within,900,$(PY) -m pytest -rs $(DURATIONS) tests/browser)

# UCX remarks at the end on messages that a test of errors left in flight.
test-nolocal:  ## the parallel tests under MPICH on 3 ranks that share no memory, as on three hosts
	@MPIR_CVAR_NOLOCAL=1 UCX_LOG_LEVEL=error $(MAKE) --no-print-directory test-parallel-3 MPI=mpich \
	  LAUNCH_TIMEOUT=1200 PARALLEL='$(PARALLEL_ANYWHERE)'

test-oracles: test-torch-alone $(ORACLE_RANKS:%=test-torch-%)  ## psrt.torch, psrt.jax, and low rank against torch's own, in an environment with both

# What knows no MPI, and apps that start ranks themselves.
test-torch-alone: .venv-oracles/.has-torch  ## what of that needs no mpirun around it
	$(call within,900,.venv-oracles/bin/python -m pytest -rs $(DURATIONS) -n 2 --dist loadfile \
	  tests/pure/codec/test_torch.py tests/pure/torch tests/pure/jax tests/e2e/torch \
	  'tests/e2e/test_docs.py::test_everything_runs_as_printed[README.md]' \
	  'tests/e2e/test_docs.py::test_everything_runs_as_printed[docs/torch.md]' \
	  'tests/e2e/test_docs.py::test_everything_runs_as_printed[docs/trainer.md]' \
	  'tests/e2e/test_docs.py::test_everything_runs_as_printed[docs/jax.md]')

$(ORACLE_RANKS:%=test-torch-%): test-torch-%: .venv-oracles/.has-torch
	$(call within,900,.venv-oracles/bin/mpirun $(MPIRUN_FLAGS) -n $* \
	  .venv-oracles/bin/python -m pytest -x -s $(COLOR) $(DURATIONS) --with-mpi $(if $(MARKED),-m '$(MARKED)') tests/parallel/torch tests/parallel/jax \
	  $(if $(filter $(FEW_RANKS),$*),tests/parallel/test_bench.py))

# Of its own: nothing else needs torch, and what takes it where it is there would take longer.
.venv-oracles/.has-torch: setup.py
	@$(MAKE) --no-print-directory VENV=.venv-oracles .venv-oracles/.has-tests
	@echo "installing $(TORCH), $(JAX) and $(SKLEARN) into .venv-oracles"
	@.venv-oracles/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH) '$(JAX)'
	@.venv-oracles/bin/python -m pip install --quiet --disable-pip-version-check '$(SKLEARN)'
	@.venv-oracles/bin/python -c 'import jax, sklearn, torch.distributed'
	@touch $@

# With the network: builds, and what is installed from the wheel, take their packages from PyPI.
test-packaging: $(VENV)/.has-release  ## sdist and wheel: built, checked, and at work where only they are
	$(PY) .ci/release.py --rehearse
	$(call within,1200,$(PY) -m pytest -rs $(DURATIONS) tests/packaging)

release: $(VENV)/.has-release  ## build what PyPI gets, if all names one version; ARGS=--upload uploads it
	$(PY) .ci/release.py $(ARGS)

fuzz: $(VENV)/.has-tests  ## JOBS=2000 random jobs, FAULTS=10000 in which much goes wrong, CASES=100000 damaged files; a failure says its SEED
	PSRT_FUZZ=$(JOBS) PSRT_FUZZ_FAULTS=$(FAULTS) PSRT_FUZZ_CASES=$(CASES) PSRT_FUZZ_SEED=$(SEED) $(PY) -m pytest -x --tb=short tests/pure/fuzz

mutants: $(VENV)/.has-mutants  ## which test sees each of 300 changes of the code first, and how soon, beside .ci/mutants.jsonl: hours; FOUND=runs/mutants.jsonl
	$(PY) .ci/mutants.py run $(FOUND)
	$(PY) .ci/mutants.py table .ci/mutants.jsonl $(FOUND)

# Not what you keep beside them, such as a script of your own.
LINTED = psrt apps tests docs .ci/long.py .ci/mutants.py .ci/release.py setup.py

lint: $(VENV)/.has-lint  ## style, types, and the direction of imports
	$(VENV)/bin/ruff check $(LINTED)
	$(VENV)/bin/ruff format --check $(LINTED) README.md CONTRIBUTING.md
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# A warning is an error: a link that leads nowhere, a page that nothing leads to, a name that is not there.
SPHINX = $(PY) -m sphinx --quiet --fail-on-warning --keep-going --nitpicky
docs-site: $(VENV)/.has-docs  ## the pages as a site in docs/_build/html; its examples and links tried
	rm -rf docs/_build  # else it has pages that are gone, and old titles in the navigation
	$(SPHINX) -b html docs docs/_build/html
	$(SPHINX) -b doctest docs docs/_build/doctest
	$(PY) -m pytest -rs tests/site

# --- benchmarks ---------------------------------------------------------------------------------

bench: bench-step bench-allreduce bench-call bench-codec bench-ps bench-keyed bench-train bench-pipeline bench-parallelism bench-history bench-checkpoints bench-simulate  ## all benchmarks; they need an idle machine

bench-step: $(VENV)/.has-psrt  ## a training step against its bare matrix products
	$(PY) apps/bench/step.py $(ARGS)

bench-allreduce: $(VENV)/.has-psrt  ## all-reduces against MPI.Allreduce; ARGS='--fit FILE' keeps the costs
	$(MPIRUN) -n 4 $(PY) -m psrt bench allreduce $(ARGS)

bench-call: $(VENV)/.has-psrt  ## overhead of a call of 1 KB beyond its messages
	$(MPIRUN) -n 2 $(PY) apps/bench/call.py $(ARGS)

bench-codec: $(VENV)/.has-psrt  ## codecs in GB/s and bytes, and the links on which they pay
	$(PY) -m psrt bench codec $(ARGS)

bench-targets: $(VENV)/.has-psrt  ## bench-allreduce, and whether it meets its targets
	@mkdir -p runs
	$(MPIRUN) -n 4 $(PY) -m psrt bench allreduce --json runs/allreduce.json $(ARGS)
	$(PY) apps/bench/targets.py runs/allreduce.json

bench-ps: $(VENV)/.has-psrt  ## push and pull against the simplest loop
	$(MPIRUN) -n 5 $(PY) apps/bench/ps.py $(ARGS)

bench-keyed: $(VENV)/.has-psrt  ## many arrays by name, pushed and pulled, against mpi4py: ps-lite's benchmark
	$(MPIRUN) -n 3 $(PY) apps/bench/keyed.py $(ARGS)

bench-train: $(VENV)/.has-psrt  ## samples per second of the modes against one process
	$(MPIRUN) -n 3 $(PY) apps/bench/train.py $(ARGS)

bench-pipeline: $(VENV)/.has-psrt  ## models split across ranks against one process with the whole batch
	$(MPIRUN) -n 2 $(PY) apps/bench/pipeline.py $(ARGS)

bench-parallelism: $(VENV)/.has-psrt  ## one model on two ranks in every way to divide it: time, memory, bytes
	$(MPIRUN) -n 2 $(PY) apps/bench/parallelism.py $(ARGS)

bench-history: $(VENV)/.has-psrt  ## cost per step of recording a history, and of the last events
	$(MPIRUN) -n 3 $(PY) apps/bench/history.py $(ARGS)

bench-checkpoints: $(VENV)/.has-psrt  ## how long a checkpoint holds a rank up, and what they cost; 8 minutes
	$(MPIRUN) -n 2 $(PY) apps/bench/checkpoints.py $(ARGS)

bench-adapters: .venv-oracles/.has-torch  ## modules of torch under psrt beside DDP over gloo, in an environment with torch
	.venv-oracles/bin/mpirun $(MPIRUN_FLAGS) -n 3 .venv-oracles/bin/python apps/bench/adapters.py $(ARGS)

# As root. Without ARGS in half an hour; what is in runs/hosts already goes into the page again.
bench-hosts: $(VENV)/.has-tests  ## all-reduces between hosts that this machine plays, into docs/hosts.md
	$(call installed_for_root,sshd ssh ip tc unshare,$(HOSTS))
	PYTHONPATH=tests $(PY) apps/bench/hosts.py $(ARGS)

# As root, in five minutes.
bench-hosts-overlap: $(VENV)/.has-tests  ## what overlap gains between such hosts, into docs/hosts.md
	$(call installed_for_root,sshd ssh ip tc unshare,$(HOSTS))
	PYTHONPATH=tests $(PY) apps/bench/overlap.py $(ARGS)

# As root, in ten minutes.
bench-hosts-ps: $(VENV)/.has-tests  ## pushes and pulls between such hosts, into docs/hosts.md
	$(call installed_for_root,sshd ssh ip tc unshare,$(HOSTS))
	PYTHONPATH=tests $(PY) apps/bench/hosts_ps.py $(ARGS)

# As root, in half an hour; ARGS=--one-host needs no root, and writes no page.
bench-plan: $(VENV)/.has-tests  ## what psrt plan predicts beside what comes of it, into docs/plan.md
	$(if $(findstring --one-host,$(ARGS)),,$(call installed_for_root,sshd ssh ip tc unshare,$(HOSTS)))
	PYTHONPATH=tests $(PY) apps/bench/plan.py $(ARGS)

bench-simulate: $(VENV)/.has-psrt  ## events per second of simulations and of checks, and their memory
	$(PY) apps/bench/simulate.py $(ARGS)

# --- cleaning up --------------------------------------------------------------------------------

clean:  ## delete caches and build leftovers; keeps the environments and runs/
	rm -rf build dist docs/_build *.egg-info .mypy_cache .ruff_cache .import_linter_cache .hypothesis .pytest_cache
	find psrt apps tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## clean, and delete the environments
	rm -rf .venv .venv-mpich .venv-oracles
