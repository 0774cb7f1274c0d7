// SPDX-License-Identifier: Apache-2.0

package explore

// Configs are explored by every run of the tests. Each is about one kind of trouble and small enough to be looked at often;
// together they reach every line of the tables in elastic/doc.go. Those with MaxStates are cut.
func Configs() []Config {
	return []Config{
		{Name: "deaths", Members: 3, Steps: 1, Generations: 2, Faults: 1, Deaths: true},
		{Name: "joiner", Members: 3, Joiners: 1, Steps: 1, Generations: 2, Faults: 1, Deaths: true, Planned: true, MaxStates: 30_000},
		{Name: "daemons", Members: 2, Steps: 2, Generations: 3, Faults: 1, Daemons: true, MaxStates: 30_000},
		{Name: "faults", Members: 2, Steps: 1, Generations: 3, Faults: 2, Deaths: true, Daemons: true},
		{Name: "refusals", Members: 3, Steps: 1, Generations: 2, Faults: 1, Refusals: true, MaxStates: 30_000},
		{Name: "again", Members: 2, Steps: 1, Generations: 3, Faults: 2, Refusals: true, MaxStates: 30_000},
		{Name: "leases", Members: 2, Joiners: 1, Steps: 1, Generations: 2, Faults: 1, Leases: true, Publish: 1, Late: 1},
		{Name: "groups", Members: 4, Group: 2, Steps: 1, Generations: 2, Faults: 1, Deaths: true},
		{Name: "pins", Members: 4, Joiners: 1, Group: 2, Pinned: true, Steps: 1, Generations: 3, Faults: 1, Deaths: true, Planned: true, MaxStates: 20_000},
		{Name: "branches", Members: 3, Group: 2, Steps: 2, Generations: 3, Faults: 1, Deaths: true, Publish: 1, MaxStates: 30_000},
		{Name: "heals", Members: 2, Joiners: 1, Steps: 1, Generations: 3, Faults: 1, Deaths: true, Breaks: true, Planned: true, Heals: true},
		{Name: "fine", Members: 2, Joiners: 1, Steps: 1, Generations: 3, Faults: 1, Leases: true, Breaks: true, Planned: true, Heals: true, Fine: true, Wishes: 1, Wish: Resizes, MaxStates: 30_000},
		{Name: "instants", Members: 2, Steps: 1, Generations: 2, Faults: 1, Daemons: true, Leases: true, Fine: true},
		{Name: "rewinds", Members: 2, Steps: 2, Generations: 3, Publish: 2, Wishes: 1, Wish: Rewinds},
		{Name: "rewound", Members: 1, Steps: 2, Generations: 3, Publish: 1, Wishes: 2, Wish: Rewinds, Heals: true},
		{Name: "wishes", Members: 3, Joiners: 1, Steps: 1, Generations: 3, Wishes: 2, Wish: Resizes | Drains | Quarantines | Leaves, Planned: true, MaxStates: 20_000},
		{Name: "stops", Members: 1, Steps: 1, Generations: 2, Wishes: 3, Wish: Stops | Quarantines | Drains | Resizes},
		{Name: "levels", Members: 2, Min: 2, Steps: 2, Generations: 3, Faults: 1, Deaths: true, Reach: 2, Publish: 1, Wishes: 1, Wish: Rewinds, MaxStates: 20_000},
		{Name: "opening", Members: 2, Steps: 1, Generations: 2, Wishes: 2, Wish: AllWishes, Opening: true, Finish: true, Publish: 2, MaxStates: 30_000},
	}
}

// Whole is the exploration that is run by hand.
func Whole() Config {
	return Config{Name: "whole", Members: 3, Steps: 2, Generations: 3, Faults: 2, Deaths: true, Daemons: true, Late: 1}
}
