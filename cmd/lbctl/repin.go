package main

import (
	"fmt"
	"strings"
)

// repin gives every context that has the pin by which the cluster was reached just now the pin of its new authority: whoever went on with the old
// one would trust the nodes that still show it, those whose keys are stolen before all. It says what is left to be done elsewhere.
func (c *cli) repin(cl *client, pin string, previousHolds bool) {
	until := "no pin before is good any more, and who still has one must not log in with it"
	if previousHolds {
		until = "the pins before stay good until `lbctl cluster rotate-ca --retire`"
	}
	c.say("the certificate authority is another one: %s\n%s", pin, until)
	names, err := c.repinContexts(cl, pin)
	switch {
	case err != nil:
		fmt.Fprintf(c.stderr, "warning: the pin in the contexts is the one before: %v: lbctl context set NAME --ca %s\n", err, pin)
	case len(names) > 0:
		c.say("context %s has the new pin; give it to every other machine and pipeline: lbctl context set NAME --ca %s", strings.Join(names, ", "), pin)
	default:
		c.say("give it to every machine and pipeline that pins it: LBCTL_CA, or lbctl context set NAME --ca %s", pin)
	}
}

// repinContexts returns the names of the contexts that were changed.
func (c *cli) repinContexts(cl *client, pin string) (names []string, err error) {
	if cl.reach.authority == nil || cl.reach.authority.pin == "" || cl.reach.authority.pin == pin {
		return nil, nil
	}
	all, err := c.readContexts()
	if err != nil {
		return nil, err
	}
	for i := range all.All {
		if x := &all.All[i]; x.CA == cl.reach.authority.pin {
			x.CA = pin
			names = append(names, x.Name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	return names, c.writeContexts(all)
}
