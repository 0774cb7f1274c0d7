// SPDX-License-Identifier: Apache-2.0

// Command gen writes the Go, C and Python forms of the control page's layout from page.toml. It runs in the folder of
// package wire: go generate ./client/wire.
package main

import (
	"fmt"
	"os"

	"phalanx/client/wire/gen/layout"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run() error {
	text, err := os.ReadFile("page.toml")
	if err != nil {
		return fmt.Errorf("read the layout: %w", err)
	}
	files, err := layout.Generate(text)
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(name, content, 0o644); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}
