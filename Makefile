# `make help` lists what there is. Everything runs as root; otherwise sudo is used where it must be.

SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUDO := $(if $(filter 0,$(shell id -u)),,sudo -E)
export ATOLL_CACHE ?= $(CURDIR)/.cache
DEMO_DIR ?= /var/lib/atoll
# Test files that run at once. Each of them starts clouds of its own.
JOBS ?= 2

# What the product needs to run and to build its image; and what the tests hold it against.
PACKAGES := qemu-system-x86 qemu-utils e2fsprogs nftables util-linux tar busybox-static musl-tools libc6-dev lz4 python3-venv iproute2 ipxe-qemu
TEST_PACKAGES := lxc uidmap docker.io podman runc mmdebstrap cloud-init openssh-client curl bind9-dnsutils libwrap0 systemd zsh fish man-db groff-base

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.ready ## everything needed: Debian packages, the virtual environment, atoll in .venv/bin
	@# Else a command would be compiled anew each time, for whoever may not write here or writes no bytecode.
	@$(BIN)/python -m compileall -q src

$(VENV)/.ready: requirements.txt requirements-dev.txt pyproject.toml Makefile
	@setup/packages $(PACKAGES)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m atoll.cli.man
	@touch $@

setup-test: setup $(VENV)/.ready-test ## what the tests need besides: other kinds of machine, cloud-init

$(VENV)/.ready-test: Makefile
	@setup/packages $(TEST_PACKAGES)
	@setup/unpacked $(BIN) prometheus /usr/bin/promtool
	@setup/unpacked $(BIN) openssh-server /usr/sbin/sshd
	@touch $@

demo: setup ## a one-node cloud and two VMs that answer
	@$(SUDO) env ATOLL_DIR=$(DEMO_DIR) ATOLL_CACHE=$(ATOLL_CACHE) $(BIN)/python demo/demo.py

demo-down: setup ## remove the demo's cloud and everything of it
	@$(SUDO) env ATOLL_DIR=$(DEMO_DIR) $(BIN)/atoll down --destroy --yes

check: setup ## the quick part: format, lint, types, layers, unit tests
	@$(BIN)/python -m pytest -q tests/style tests/unit

test: setup-test ## all tests
	@$(SUDO) env ATOLL_CACHE=$(ATOLL_CACHE) CI=$(CI) $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder tests

format: setup ## put the code into its form
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

reference: setup ## write the reference pages anew
	@$(BIN)/python -m atoll.api.reference > docs/reference/api.md
	@$(BIN)/python -m atoll.hypervisor.settings page > docs/configuration.md

man: setup ## write the man pages anew, for man in a shell that finds .venv/bin/atoll
	@$(BIN)/python -m atoll.cli.man

picture: setup ## draw what the demo prints as docs/demo.svg
	@$(SUDO) env ATOLL_DIR=$(DEMO_DIR) ATOLL_CACHE=$(ATOLL_CACHE) $(BIN)/python demo/picture.py

bench: setup-test ## measure, beside peers and limits; writes bench/results
	@$(SUDO) env ATOLL_CACHE=$(ATOLL_CACHE) $(BIN)/python bench/run.py

reliability: setup-test ## the fault tests, longer than usual; writes docs/reliability.md
	@rm -f .cache/reliability.json
	@$(SUDO) env ATOLL_CACHE=$(ATOLL_CACHE) ATOLL_FAULT_SCHEDULES=$${ATOLL_FAULT_SCHEDULES:-500} \
	  ATOLL_RELIABILITY=$(CURDIR)/.cache/reliability.json $(BIN)/python -m pytest -q \
	  tests/host/faults tests/services/hypervisor/test_fault_schedules.py
	@$(BIN)/python tests/host/faults/page.py .cache/reliability.json > docs/reliability.md

# The soak first: all others run beside it.
SOAK := tests/host/attacks/test_soak.py
ATTACKS := $(SOAK) $(filter-out $(SOAK),$(wildcard tests/host/attacks/test_*.py)) tests/services/serving/test_door.py $(addprefix tests/services/hypervisor/test_,cross_site.py open_calls.py other_users.py stores.py)

attack: setup-test ## the attack tests, a million inputs and a soak of two hours; writes docs/attacks.md
	@rm -f .cache/attacks.jsonl .cache/attacks.xml && mkdir -p .cache
	@$(SUDO) env ATOLL_CACHE=$(ATOLL_CACHE) ATOLL_ATTACKS=$(CURDIR)/.cache/attacks.jsonl \
	  ATOLL_ATTACK_INPUTS=$${ATOLL_ATTACK_INPUTS:-1000000} ATOLL_ATTACK_SOAK_S=$${ATOLL_ATTACK_SOAK_S:-7200} \
	  $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --junitxml=.cache/attacks.xml $(ATTACKS)
	@$(BIN)/python tests/host/attacks/page.py .cache/attacks.xml .cache/attacks.jsonl > docs/attacks.md

lock: ## resolve the dependencies anew, with hashes
	@$(PYTHON) -m venv .lock && .lock/bin/pip -q install uv
	@.lock/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate pyproject.toml -o requirements.txt
	@.lock/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --group dev -c requirements.txt pyproject.toml -o requirements-dev.txt
	@rm -rf .lock

.PHONY: help setup setup-test demo demo-down check test format reference man picture bench reliability attack lock
