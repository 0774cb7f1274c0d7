// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// sketch makes candidates and servers of a line like "a1:V b1:s c1:- a2:v!": host and index, then what it is: V leader,
// v voter, s standby, b blank standby (not caught up), - no server; ! means dead, ? that there is no candidate.
func sketch(line string) (candidates []Candidate, servers []Server, leader string) {
	for field := range strings.FieldsSeq(line) {
		id, role, _ := strings.Cut(field, ":")
		host, domain, _ := strings.Cut(id, "@")
		id = host
		switch role[0] {
		case 'V', 'v':
			servers = append(servers, Server{ID: id, Voter: true})
		case 's', 'b':
			servers = append(servers, Server{ID: id})
		}
		if role[0] == 'V' {
			leader = id
		}
		if !strings.Contains(role, "?") {
			candidates = append(candidates, Candidate{
				ID: id, Addr: id + ":1", Host: strings.TrimRight(host, "0123456789"), Domain: domain,
				Alive: !strings.Contains(role, "!"), CaughtUp: role[0] == 's',
			})
		}
	}
	return candidates, servers, leader
}

func TestPlanVoters(t *testing.T) {
	for _, test := range []struct{ name, have, want string }{
		{"one daemon", "a1:V", ""},
		{"two daemons of a host: one voter and a standby", "a1:V a2:-", "add a2"},
		{"two daemons, settled", "a1:V a2:s", ""},
		{"one host: three voters", "a1:V a2:s a3:s a4:-", "add a4, promote a2, promote a3"},
		{"one host: blank ones wait", "a1:V a2:b a3:b a4:s", ""},
		{"two daemons on two hosts: one voter", "a1:V b1:s", ""},
		{"two hosts: two and one", "a1:V a2:s b1:s b2:s", "promote b1, promote a2"},
		{"two hosts, settled", "a1:V a2:v b1:v b2:s a3:s", ""},
		{"three hosts: from one to all", "a1:V a2:v a3:v b1:s c1:s", "promote b1, promote c1, demote a2, demote a3"},
		{"new hosts come in though standbys are full", "a1:V a2:v a3:v a4:s a5:s a6:s a7:s b1:- c1:-", "add b1, add c1"},
		{"more standbys than four", "a1:V a2:v a3:v a4:s a5:s a6:s b1:b c1:b", "remove a6"},
		{"four hosts: three", "a1:V b1:v c1:v d1:s", ""},
		{"five hosts: five", "a1:V b1:v c1:v d1:s e1:s", "promote d1, promote e1"},
		{"dead voter first, then its successor", "a1:V b1:v! c1:v d1:s", "remove b1, promote d1"},
		{"dead voter without successor: even, then odd", "a1:V b1:v! c1:v", "remove b1, demote c1"},
		{"dead standby", "a1:V b1:s!", "remove b1"},
		{"racks before hosts", "a@r1:V b@r1:s c@r2:s d@r3:s", "promote c, promote d"},
		{"domains of one rack, then hosts", "a1@r1:V a2@r1:s b1@r1:s c1@r1:s", "promote b1, promote c1"},
		{"who is not known stays", "a1:V x:v? y:v?", ""},
		{"standby that is not known stays", "a1:V x:s?", ""},
		{"leader is believed to live", "a1:V! b1:s", ""},
		{"nobody", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, c := range PlanVoters(sketch(test.have)) {
				got = append(got, string(c.Kind)+" "+c.ID)
			}
			if strings.Join(got, ", ") != test.want {
				t.Fatalf("%s\ngot  %s\nwant %s", test.have, strings.Join(got, ", "), test.want)
			}
		})
	}
}

// perform changes servers as raft would.
func perform(servers []Server, c Change) []Server {
	servers = slices.Clone(servers)
	i := slices.IndexFunc(servers, func(s Server) bool { return s.ID == c.ID })
	switch c.Kind {
	case Add:
		return append(servers, Server{ID: c.ID, Addr: c.Addr})
	case Promote:
		servers[i].Voter = true
	case Demote:
		servers[i].Voter = false
	case Remove:
		return slices.Delete(servers, i, i+1)
	}
	return servers
}

func TestPlanVotersProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var candidates []Candidate
		var servers []Server
		hosts := rapid.IntRange(1, 8).Draw(t, "hosts")
		racks := rapid.IntRange(0, 4).Draw(t, "racks")
		for h := range hosts {
			for i := range rapid.IntRange(1, 4).Draw(t, "daemons") {
				c := Candidate{ID: fmt.Sprintf("h%d-%d", h, i), Host: fmt.Sprint("h", h), Alive: rapid.IntRange(0, 4).Draw(t, "alive") > 0}
				if racks > 0 {
					c.Domain = fmt.Sprint("r", h%racks)
				}
				c.CaughtUp = rapid.Bool().Draw(t, "caught up")
				switch rapid.IntRange(0, 3).Draw(t, "role") {
				case 0:
					servers = append(servers, Server{ID: c.ID, Voter: true})
				case 1:
					servers = append(servers, Server{ID: c.ID})
				}
				candidates = append(candidates, c)
			}
		}
		candidates[0].Alive = true
		leader := candidates[0].ID
		servers = slices.DeleteFunc(servers, func(s Server) bool { return s.ID == leader })
		servers = append([]Server{{ID: leader, Voter: true}}, servers...)
		known := map[string]*Candidate{}
		for i := range candidates {
			known[candidates[i].ID] = &candidates[i]
		}
		count := func(servers []Server) (living, voters int) {
			for _, s := range servers {
				if s.Voter {
					voters++
					if known[s.ID].Alive {
						living++
					}
				}
			}
			return living, voters
		}
		for steps := 0; ; steps++ {
			if steps > 100 {
				t.Fatalf("does not settle: %v", servers)
			}
			changes := PlanVoters(candidates, servers, leader)
			if !reflect.DeepEqual(changes, PlanVoters(candidates, servers, leader)) {
				t.Fatal("two plans of one state differ")
			}
			if len(changes) == 0 {
				pending := false
				for _, s := range servers {
					c := known[s.ID]
					pending = pending || !c.CaughtUp
					c.CaughtUp = true // the blank ones catch up now
				}
				if pending {
					continue
				}
				break
			}
			c := changes[0]
			if c.Why == "" {
				t.Fatalf("%v has no reason", c)
			}
			living, voters := count(servers)
			if living < voters && !(c.Kind == Remove && !known[c.ID].Alive) {
				t.Fatalf("%v while a voter is dead", c)
			}
			if c.ID == leader {
				t.Fatalf("%v of the leader", c)
			}
			if c.Kind == Promote && !known[c.ID].CaughtUp || (c.Kind == Promote || c.Kind == Add) && !known[c.ID].Alive {
				t.Fatalf("%v of %+v", c, known[c.ID])
			}
			servers = perform(servers, c)
			after, afterVoters := count(servers)
			if living > voters/2 && after <= afterVoters/2 {
				t.Fatalf("%v takes the majority: %d of %d, then %d of %d", c, living, voters, after, afterVoters)
			}
		}
		living, voters := count(servers)
		alive, aliveHosts, aliveDomains := 0, map[string]bool{}, map[string]bool{}
		for _, c := range candidates {
			if c.Alive {
				alive++
				aliveHosts[c.Host] = true
				aliveDomains[domainOf(c.Domain, c.Host)] = true
			}
		}
		want := 3
		if len(aliveHosts) >= 5 {
			want = 5
		}
		if alive < want {
			want = alive - 1 + alive%2
		}
		if voters != want || living != voters {
			t.Fatalf("%d voters, %d living, want %d: %v", voters, living, want, servers)
		}
		domains := map[string]int{}
		for _, s := range servers {
			if s.Voter {
				domains[domainOf(known[s.ID].Domain, known[s.ID].Host)]++
			}
		}
		if len(domains) < min(voters, len(aliveDomains)) {
			t.Fatalf("%d voters in %d of %d domains", voters, len(domains), len(aliveDomains))
		}
		if standbys := len(servers) - voters; standbys > maxStandbys || standbys < min(standbysOfFew, alive-voters) {
			t.Fatalf("%d standbys beside %d voters, %d alive", standbys, voters, alive)
		}
	})
}

// domainOf returns the first that is not empty.
func domainOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
