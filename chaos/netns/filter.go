// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// Filter drops packets on their way through the switch, silently, as a broken network does.
type Filter struct {
	From, To []*Host // nil: any
	// DSCP are the marks of the packets that are dropped; nil: all of them, ARP too.
	DSCP []uint8
	// Percent of these packets are dropped, drawn for each; 0: all.
	Percent int
}

// Both is the filter in both directions.
func (f Filter) Both() []Filter {
	back := f
	back.From, back.To = f.To, f.From
	return []Filter{f, back}
}

// Split are the filters that cut the hosts of each side off from those of all others.
func Split(sides ...[]*Host) []Filter {
	var out []Filter
	for i, a := range sides {
		for _, b := range sides[i+1:] {
			out = append(out, Filter{From: a, To: b}.Both()...)
		}
	}
	return out
}

// Apply replaces all filters of the network by the given ones, at one instant. Without any everything passes.
func (n *Net) Apply(filters ...Filter) error {
	if _, err := exec.LookPath("nft"); err != nil {
		return errors.New("filters need the nft command: install nftables")
	}
	var rules strings.Builder
	// To be deleted the table has to be there; all of it is one transaction.
	fmt.Fprintln(&rules, "table bridge phalanx")
	fmt.Fprintln(&rules, "delete table bridge phalanx")
	fmt.Fprintln(&rules, "table bridge phalanx {\nchain forward {\ntype filter hook forward priority 0; policy accept;")
	for _, f := range filters {
		fmt.Fprintln(&rules, f.rule())
	}
	fmt.Fprintln(&rules, "}\n}")
	cmd := exec.Command("ip", "netns", "exec", n.name, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("load filters: %w: %s\n%s", err, strings.TrimSpace(string(out)), rules.String())
	}
	return nil
}

func (f Filter) rule() string {
	var b strings.Builder
	ports := func(what string, hosts []*Host) {
		if hosts == nil {
			return
		}
		names := make([]string, 0, len(hosts))
		for _, h := range hosts {
			names = append(names, `"`+h.port+`"`)
		}
		fmt.Fprintf(&b, "%s { %s } ", what, strings.Join(names, ", "))
	}
	ports("iifname", f.From)
	ports("oifname", f.To)
	if f.DSCP != nil {
		marks := slices.Clone(f.DSCP)
		slices.Sort(marks)
		fmt.Fprintf(&b, "ip dscp { %s } ", strings.Trim(strings.ReplaceAll(fmt.Sprint(marks), " ", ", "), "[]"))
	}
	if f.Percent > 0 {
		fmt.Fprintf(&b, "numgen random mod 100 < %d ", f.Percent)
	}
	return b.String() + "drop"
}
