package rcctl

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// commandLine sorts a command line into what urfave/cli wants in this order: flags of the program, names of commands,
// flags of the last command, arguments. People write flags where they like.
type commandLine struct {
	app        *cli.App
	command    *cli.Command // the last one named; nil at the top
	global     []string
	path       []string
	local      []string
	positional []string
	seen       map[string]bool // flags, by their first name
	help       bool            // the first word was "help"
}

// interspersed puts the arguments of the program into the order that urfave/cli understands. It refuses a flag that
// is given twice: taking the last of two -f would leave out a file without a word.
func interspersed(app *cli.App, args []string) ([]string, error) {
	l := commandLine{app: app, seen: map[string]bool{}}
	rest := args[1:]
	for len(rest) > 0 {
		arg := rest[0]
		rest = rest[1:]
		switch {
		case arg == "--":
			l.positional = append(l.positional, rest...)
			rest = nil
		case isFlag(arg):
			used, done, err := l.flag(arg, rest)
			if err != nil {
				return nil, err
			}
			if done {
				return slices.Concat(args[:1], l.path, []string{arg}), nil
			}
			rest = rest[used:]
		default:
			l.word(arg)
		}
	}
	if l.help {
		return slices.Concat(args[:1], l.path, []string{"--help"}), nil
	}
	ordered := slices.Concat(args[:1], l.global, l.path, l.local)
	if len(l.positional) > 0 {
		ordered = append(append(ordered, "--"), l.positional...)
	}
	return ordered, nil
}

// isFlag tells flags from arguments. A number with a sign is an argument: a wrong one, but one to talk about.
func isFlag(arg string) bool {
	return len(arg) > 1 && arg[0] == '-' && (arg[1] < '0' || arg[1] > '9')
}

// flag files one flag and returns how many of the following arguments are its value. done says that the rest does not
// matter: help was asked for, or the parser shall complain about exactly this flag.
func (l *commandLine) flag(arg string, rest []string) (used int, done bool, err error) {
	name, _, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	if name == "help" || name == "h" {
		return 0, true, nil
	}
	dest, found := &l.local, (cli.Flag)(nil)
	if l.command != nil {
		found = find(l.command.Flags, name)
	}
	if found == nil {
		if found = find(l.app.Flags, name); found != nil {
			dest = &l.global
		}
	}
	if found == nil {
		return 0, true, nil
	}
	if first := found.Names()[0]; l.seen[first] {
		return 0, false, &usageError{command: l.name(), err: fmt.Errorf("--%s: given twice; allowed: once", first)}
	}
	l.seen[found.Names()[0]] = true
	*dest = append(*dest, arg)
	if _, isBool := found.(*cli.BoolFlag); isBool || hasValue {
		return 0, false, nil
	}
	if len(rest) == 0 {
		return 0, false, &usageError{command: l.name(), err: errors.New(arg + ": missing value")}
	}
	*dest = append(*dest, rest[0])
	return 1, false, nil
}

// word files the name of a command, or an argument.
func (l *commandLine) word(arg string) {
	if arg == "help" && l.command == nil && len(l.positional) == 0 {
		l.help = true
		return
	}
	commands := l.app.Commands
	if l.command != nil {
		commands = l.command.Subcommands
	}
	i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(arg) })
	if i < 0 || len(l.positional) > 0 {
		l.positional = append(l.positional, arg)
		return
	}
	l.path = append(l.path, arg)
	l.command = commands[i]
}

func (l *commandLine) name() string {
	return strings.Join(append([]string{l.app.Name}, l.path...), " ")
}

func find(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}
