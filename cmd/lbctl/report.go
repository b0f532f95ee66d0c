package main

import (
	"cmp"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

// problemsShownMax bounds what a person is shown of one document's problems; JSON holds them all.
const problemsShownMax = 200

// violations are the causes that a node's refusal lists.
func violations(err error) []*lbdv1.Violation {
	var all []*lbdv1.Violation
	for _, d := range status.Convert(err).Details() {
		bad, ok := d.(*errdetails.BadRequest)
		if !ok {
			continue
		}
		for _, v := range bad.GetFieldViolations() {
			all = append(all, &lbdv1.Violation{
				Severity:    lbdv1.Severity_SEVERITY_ERROR,
				Field:       v.GetField(),
				Description: v.GetDescription(),
			})
		}
	}
	return all
}

// reason is the word by which a node's refusal can be told from others of its code; empty if it has none.
func reason(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

// isRevision tells whether what a node says is not there is a revision.
func isRevision(err error) bool {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ResourceInfo); ok {
			return info.GetResourceType() == "revisions"
		}
	}
	return false
}

// tell tells problems, as --error-format has it. It returns the failure that they are if there is an error among them.
func (c *cli) tell(problems []document.Problem) error { return c.tellAs(exitInvalid, problems) }

// tellAs is tell with the exit code of the failure.
func (c *cli) tellAs(code int, problems []document.Problem) error {
	errors := 0
	for i, p := range problems {
		if !p.Warning {
			errors++
		}
		switch {
		case c.problems.collects():
			c.problems.all = append(c.problems.all, p)
		case i >= problemsShownMax:
		case c.problems.format == problemsGitHub:
			c.problems.annotated = c.problems.annotated || !p.Warning
			fmt.Fprintln(c.stderr, workflowCommand(p))
		default:
			fmt.Fprintln(c.stderr, p)
		}
	}
	if more := len(problems) - problemsShownMax; more > 0 && !c.problems.collects() {
		fmt.Fprintf(c.stderr, "… and %d more\n", more)
	}
	switch {
	case errors == 0:
		return nil
	case c.problems.collects():
		return &failure{code: code}
	}
	if code == exitForbidden {
		return fail(code, "%s: what the caller is bound to is shown by `lbctl whoami`, and what an owner may use by `lbctl get owners`", countOf(errors, "error"))
	}
	return fail(code, "%s", countOf(errors, "error"))
}

// flagOf is the flag by which a field of a request is set.
var flagOf = map[string]string{
	"chain_pem": "--chain", "key_pem": "--key", "owner": "--owner", "message": "-m", "name": "NAME",
	"pool": "POOL", "address": "ADDRESS", "weight": "WEIGHT", "reason": "--reason", "expire_time": "--expires",
	"url": "URL", "to": "--to", "client": "--client", "limit": "--limit", "duration": "--duration", "cpu_profile": "--cpu-profile",
	"role": "--role", "description": "--description", "certificate_pem": "--certificate",
}

// tellViolations is tell for what was said by flags.
func (c *cli) tellViolations(vs []*lbdv1.Violation) {
	for _, v := range vs {
		severity := "error"
		if v.GetSeverity() == lbdv1.Severity_SEVERITY_WARNING {
			severity = "warning"
		}
		about := cmp.Or(flagOf[v.GetField()], v.GetField())
		if about != "" {
			about += ": "
		}
		fmt.Fprintf(c.stderr, "%s: %s%s\n", severity, about, v.GetDescription())
	}
}
