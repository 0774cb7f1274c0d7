// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"phalanx/node"
)

func newKey(a *app) *cobra.Command {
	c := &cobra.Command{Use: "key", Short: "Make the key that the hosts of a job share", Args: cobra.NoArgs, RunE: group}
	var asJSON bool
	made := &cobra.Command{
		Use: "new", Args: cobra.NoArgs,
		Short: "Print a new job key",
		Long: `Whoever holds the key is a member of the job and may stop it. Keep it in a file that nobody else can read, the
same on every host, and give it with --key-file.`,
		Example: "  (umask 077; phalanx key new > key)",
		RunE: func(*cobra.Command, []string) error {
			key := node.NewJobKey()
			if asJSON {
				return a.printJSON(map[string]string{"key": key.String()})
			}
			err := tell(a.stdout, "%s\n", key)
			return err
		},
	}
	made.Flags().BoolVar(&asJSON, "json", false, "answer in JSON")
	c.AddCommand(made)
	return c
}

// group is what a verb does that only has verbs below it.
func group(c *cobra.Command, _ []string) error {
	return problem(node.CodeUsage, "see "+c.CommandPath()+" --help", "%s needs one of its verbs", c.CommandPath())
}

func newVersion(a *app) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "version", Args: cobra.NoArgs, Short: "Print the version",
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return a.printJSON(map[string]string{"version": version})
			}
			err := tell(a.stdout, "phalanx %s\n", version)
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "answer in JSON")
	return c
}
