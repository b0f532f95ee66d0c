package main

import (
	"fmt"
	"strings"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

const (
	actionCreate = lbdv1.ChangeAction_CHANGE_ACTION_CREATE
	actionUpdate = lbdv1.ChangeAction_CHANGE_ACTION_UPDATE
	actionDelete = lbdv1.ChangeAction_CHANGE_ACTION_DELETE
)

// changeName is "pools/shop".
func changeName(ch *lbdv1.Change) string {
	return state.Key{Kind: state.Kind(ch.GetKind()), Name: ch.GetName()}.String()
}

func changeNames(changes []*lbdv1.Change) []string {
	var names []string
	for _, ch := range changes {
		names = append(names, changeName(ch))
	}
	return names
}

// changeWords are the resources of changes, those that were taken over first, each with from whom.
func changeWords(changes []*lbdv1.Change) []string {
	var words, rest []string
	for _, ch := range changes {
		if from := takenOver(ch); from != "" {
			words = append(words, fmt.Sprintf("%s (%s)", changeName(ch), from))
		} else {
			rest = append(rest, changeName(ch))
		}
	}
	return append(words, rest...)
}

// takenOver is from whom a change took its resource; empty: from nobody.
func takenOver(ch *lbdv1.Change) string {
	if ch.GetTakenFrom() == "" {
		return ""
	}
	return "taken over from " + oneLine(ch.GetTakenFrom())
}

// changed says what a change did, or would do: "created", "would be created".
func changed(action lbdv1.ChangeAction, dryRun bool) string {
	word := strings.ToLower(document.Word(action.Descriptor(), action.Number())) + "d"
	if dryRun {
		return "would be " + word
	}
	return word
}

// sign is what stands before a line of a diff.
func sign(action lbdv1.ChangeAction) string {
	switch action {
	case actionCreate:
		return "+"
	case actionDelete:
		return "-"
	default:
		return "~"
	}
}

// fieldSign is sign for a field of a resource that was there and stays.
func fieldSign(f *lbdv1.FieldChange) string {
	switch {
	case f.GetBefore() == "":
		return "+"
	case f.GetAfter() == "":
		return "-"
	default:
		return "~"
	}
}

// fieldText is a field's part in a change, on one line.
func fieldText(f *lbdv1.FieldChange) string {
	switch before, after := oneLine(f.GetBefore()), oneLine(f.GetAfter()); {
	case before == "":
		return f.GetPath() + ": " + after
	case after == "":
		return f.GetPath() + ": " + before
	default:
		return fmt.Sprintf("%s: %s → %s", f.GetPath(), before, after)
	}
}

// oneLine is text without what a terminal would obey.
func oneLine(s string) string { return strings.Map(visible, s) }

// writeChanges writes resources and their fields, each on a line that starts with its sign.
func (c *cli) writeChanges(changes []*lbdv1.Change) {
	for _, ch := range changes {
		fmt.Fprintf(c.stdout, "%s %s\n", sign(ch.GetAction()), changeWords([]*lbdv1.Change{ch})[0])
		c.writeFields(ch)
	}
}

func (c *cli) writeFields(ch *lbdv1.Change) {
	for _, f := range ch.GetFields() {
		fmt.Fprintf(c.stdout, "    %s %s\n", fieldSign(f), fieldText(f))
	}
}

// tally counts changes in words: "1 created, 2 updated".
func tally(changes []*lbdv1.Change) string {
	counts := map[lbdv1.ChangeAction]int{}
	for _, ch := range changes {
		counts[ch.GetAction()]++
	}
	var parts []string
	for _, action := range []lbdv1.ChangeAction{actionCreate, actionUpdate, actionDelete} {
		if n := counts[action]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, changed(action, false)))
		}
	}
	return strings.Join(parts, ", ")
}
