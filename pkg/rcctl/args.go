package rcctl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// interspersed puts arguments into the order that urfave/cli needs: flags of the program, names of commands, flags of
// the last command, arguments. So people can write flags anywhere. It refuses a flag that is given twice, because
// urfave/cli would ignore the first one.
func interspersed(app *cli.App, args []string) ([]string, error) {
	var global, path, local, positional []string
	command := &cli.Command{Subcommands: app.Commands} // the last command found so far
	seen := map[string]bool{}                          // flags, by their first name
	help := false                                      // the first word was "help"
	second := 0                                        // index in args of the second argument
	wrong := func(format string, args ...any) error {
		return &usageError{
			command: strings.Join(append([]string{app.Name}, path...), " "), err: fmt.Errorf(format, args...),
		}
	}
	for rest := args[1:]; len(rest) > 0; {
		arg := rest[0]
		rest = rest[1:]
		switch {
		case arg == "--":
			positional, rest = append(positional, rest...), nil
			continue
		case arg == "help" && len(path)+len(positional) == 0:
			help = true
			continue
		case !isFlag(arg):
			if i := slices.IndexFunc(command.Subcommands,
				func(c *cli.Command) bool { return c.HasName(arg) }); i >= 0 && positional == nil {
				path, command = append(path, arg), command.Subcommands[i]
			} else {
				positional = append(positional, arg)
			}
			if len(positional) == 2 && second == 0 {
				second = len(args) - len(rest) - 1
			}
			continue
		}
		name, _, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		flag, into := find(command.Flags, name), &local
		if flag == nil {
			flag, into = find(app.Flags, name), &global
		}
		switch isGroup := command.Subcommands != nil; {
		case flag != nil:
		case isGroup && positional != nil: // the word before this flag names no command
			return nil, wrong("%w", noCommand(positional[0], command.Subcommands))
		case second > 0 && command.Name == execName:
			return nil, wrong("%s: unknown flag; flags of the command come after --: %s", field.OneLine(arg),
				shellLine(slices.Concat([]string{app.Name}, args[1:second], []string{"--"}, args[second:])))
		case asksForHelp(name) || len(path) == 0 && asksForVersion(name): // the rest does not matter
			return slices.Concat(args[:1], path, []string{arg}), nil
		default:
			return nil, wrong("%w", noFlag(arg, slices.Concat(command.Flags, app.Flags)))
		}
		first := flag.Names()[0]
		_, isBool := flag.(*cli.BoolFlag)
		switch *into = append(*into, arg); {
		case seen[first]:
			return nil, wrong("--%s: given twice; allowed: once", first)
		case isBool || hasValue:
		case len(rest) == 0:
			return nil, wrong("%s: missing value", arg)
		default:
			*into, rest = append(*into, rest[0]), rest[1:]
		}
		seen[first] = true
	}
	switch {
	case help && command.Subcommands != nil && positional != nil:
		return nil, wrong("%w", noCommand(positional[0], command.Subcommands))
	case help:
		return slices.Concat(args[:1], path, []string{"--help"}), nil
	}
	if positional != nil {
		positional = slices.Insert(positional, 0, "--")
	}
	return slices.Concat(args[:1], global, path, local, positional), nil
}

func shellLine(words []string) string {
	return field.OneLine(strings.Join(field.Each(words, forShell), " "))
}

func noCommand(word string, commands []*cli.Command) error {
	known := field.Each(commands, func(sub *cli.Command) string { return sub.Name })
	slices.Sort(known)
	return fmt.Errorf("%q is no command; %sallowed: %s", word, meant(field.Closest(word, known)), field.Or(known...))
}

func noFlag(arg string, flags []cli.Flag) error {
	known := field.Each(flags, func(f cli.Flag) string { return "--" + f.Names()[0] })
	slices.Sort(known)
	name, _, _ := strings.Cut(arg, "=")
	return fmt.Errorf("%s: unknown flag; %sallowed: %s",
		field.OneLine(name), meant(field.Closest(name, known)), field.Or(known...))
}

func meant(word string) string {
	if word == "" {
		return ""
	}
	return "did you mean " + word + "? "
}

// Every command has the flags --help and -h, and the program has --version and -v.
func asksForHelp(flag string) bool    { return flag == "help" || flag == "h" }
func asksForVersion(flag string) bool { return flag == "version" || flag == "v" }

// isFlag takes a negative number for an argument, because the error about it should name its value.
func isFlag(arg string) bool {
	return len(arg) > 1 && arg[0] == '-' && (arg[1] < '0' || arg[1] > '9')
}

func find(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}
