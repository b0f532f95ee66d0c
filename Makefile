# A menu: each target is one command one could type.

.PHONY: help run test lint generate bench profile soak
help: ; @sed -n 's/^\([a-z]*\): ## /\1\t/p' Makefile
run: ## a dev node on 127.0.0.1:8443
	go run ./cmd/lbd run --dev
test: ## everything that must hold at every commit
	bash .ci/test
lint: ## only the linters
	go vet ./... && go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./... && go run github.com/bufbuild/buf/cmd/buf@v1.75.0 lint
generate: ## Go from the protos
	GOBIN=$(CURDIR)/bin go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12 google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
	PATH=$(CURDIR)/bin:$$PATH go run github.com/bufbuild/buf/cmd/buf@v1.75.0 generate
soak: ## the fault tests for an hour: 50 leaders killed, 20 isolated, random mixes with a printed seed
	go test ./cluster/netnstest -count 1 -v -timeout 3h -kills 50 -isolates 20 -mix 45m
bench: ## the lab: lbd beside its peers, all scenarios, half an hour, into bench/results/full and the READMEs
	rm -rf bench/results/full
	go run ./bench/lab -out bench/results/full -readme
profile: ## a flame graph of one scenario (needs perf)
	go run ./bench/lab -profile -scenario single -proxy lbd
