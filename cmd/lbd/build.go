package main

import (
	"runtime"
	"runtime/debug"
)

// version is set by the release build: -ldflags '-X main.version=1.2.3'.
var version = "dev"

// build says what this binary is.
type build struct {
	version, commit, goVersion, platform string
}

func readBuild() build {
	b := build{version: version, commit: "unknown", goVersion: runtime.Version(), platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.commit = s.Value
		}
	}
	return b
}

// id tells two builds apart, as far as that is known.
func (b build) id() string { return b.version + " " + b.commit + " " + b.goVersion }
