// Package reference writes those parts of docs/reference that follow from the programs. Two comments mark such a part
// of a page, and people write the rest:
//
//	<!-- make reference: flags farm -->
//	...
//	<!-- end -->
package reference

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/rcctl"
)

var parts = map[string]func(root string) (string, error){
	"flags both": func(string) (string, error) {
		return table(bothFlags(), app.PreparerCommand(nil, nil).Flags...)
	},
	"flags farm":          func(string) (string, error) { return table(farmFlags()) },
	"flags preparer":      func(string) (string, error) { return table(preparerFlags()) },
	"commands":            func(string) (string, error) { return commands() },
	"exit codes":          func(string) (string, error) { return exitCodes(rcctl.ExitCodes[:]) },
	"exit codes daemons":  func(string) (string, error) { return exitCodes(app.ExitCodes[:]) },
	"metrics farm":        func(string) (string, error) { return metrics("rcfarm_farm_") },
	"metrics rollouts":    func(string) (string, error) { return metrics("rcfarm_rollout_") },
	"metrics preparer":    func(string) (string, error) { return metrics("rcfarm_preparer_") },
	"conditions":          conditions,
	"alerts":              alerts,
	"records":             records,
	"states":              states,
	"environment of pods": environment,
	"features":            sure(features),
}

// sure makes a part of a text that cannot fail.
func sure(text func() string) func(root string) (string, error) {
	return func(string) (string, error) { return text(), nil }
}

var part = regexp.MustCompile(`(?s)<!-- make reference: ([a-z ]+) -->\n(.*?)<!-- end -->`)

// Pages returns the pages of docs/reference as they should be, by path.
func Pages(root string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(root, "docs", "reference", "*.md"))
	if err != nil {
		return nil, err
	}
	pages, missing := map[string]string{}, maps.Clone(parts)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if pages[file], err = renew(root, string(data), missing); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("no page of docs/reference has %q", slices.Sorted(maps.Keys(missing)))
	}
	return pages, nil
}

// renew writes the parts of one page anew, and deletes them from missing.
func renew(root, page string, missing map[string]func(string) (string, error)) (string, error) {
	var failed error
	renewed := part.ReplaceAllStringFunc(page, func(old string) string {
		name := part.FindStringSubmatch(old)[1]
		write, known := missing[name]
		if !known {
			failed = fmt.Errorf("%q is no part, or stands twice", name)
			return old
		}
		delete(missing, name)
		text, err := write(root)
		if err != nil {
			failed = fmt.Errorf("%s: %w", name, err)
		}
		return fmt.Sprintf("<!-- make reference: %s -->\n\n%s\n<!-- end -->", name, text)
	})
	return renewed, failed
}
