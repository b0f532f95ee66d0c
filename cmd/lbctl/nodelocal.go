package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// nodeLocal is the annotation of a verb that one node can do by itself, without the others.
const nodeLocal = "node_local"

// takesNodeLocal marks a verb that --node-local is for.
func takesNodeLocal(cmd *cobra.Command) *cobra.Command {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[nodeLocal] = "yes"
	return cmd
}

// checkNodeLocal refuses --node-local where it would be taken for something that it is not.
func (c *cli) checkNodeLocal(cmd *cobra.Command) error {
	if !c.nodeLocal || cmd.Annotations[nodeLocal] != "" {
		return nil
	}
	var verbs []string
	for _, noun := range cmd.Root().Commands() {
		for _, verb := range append(noun.Commands(), noun) {
			if verb.Annotations[nodeLocal] != "" {
				verbs = append(verbs, strings.TrimPrefix(verb.CommandPath(), cmd.Root().Name()+" "))
			}
		}
	}
	return fail(exitUsage, "--node-local is not for `%s`, which concerns the whole cluster: it goes with %s", cmd.CommandPath(), strings.Join(verbs, ", "))
}

// reachNodeLocal is the node on this machine, by its socket: the caller's user is the credential, which no leader has to know. Contexts say
// nothing of it.
func (c *cli) reachNodeLocal() (*reach, error) {
	named := c.endpoints
	if len(named) == 0 {
		for text := range strings.SplitSeq(c.env("LBCTL_ENDPOINTS"), ",") {
			if strings.HasPrefix(strings.TrimSpace(text), "unix:") {
				named = append(named, text)
			}
		}
	}
	if len(named) == 0 {
		named = c.localSockets(os.Getuid())
	}
	r := &reach{}
	for _, text := range named {
		e, err := parseEndpoint(text)
		if err != nil {
			return nil, err
		}
		if !e.isSocket() {
			return nil, fail(exitUsage, "--node-local takes the node's own socket, unix:PATH, not %s", text)
		}
		r.endpoints = append(r.endpoints, e)
	}
	return r, nil
}
