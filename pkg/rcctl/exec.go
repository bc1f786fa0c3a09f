package rcctl

import (
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
)

func execCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "exec", Usage: "run a command beside a pod's processes",
		UsageText: "rcctl exec POD [-i] [--raw] [--launchable NAME] [--rc REF] [--node NODE] -- COMMAND [arguments]",
		Description: `The preparer of the pod's node runs the command with the environment, directory, user and limits of one of the pod's
processes, its first unless --launchable names one. There is no terminal. POD is as for rcctl logs.

The exit code is that of the command, or 128 and the number of the signal that ended it. As in a shell it is 127 when
there is no such program, and 126 when the program could not be executed; any other is rcctl's own. Arguments are in
UTF-8. When rcctl ends before it, the command is ended with all that it started.

Examples:
  rcctl exec web-main-0 -- env
  rcctl exec web/main.0 -- sh -c 'ls -l $POD_HOME'
  rcctl exec web-main-0 -i -- tar -x -C /tmp < files.tar`,
		Flags: append(podFlags(),
			&cli.BoolFlag{Name: "stdin", Aliases: []string{"i"}, Usage: "hand on standard input"},
			rawFlag(),
			&cli.StringFlag{Name: "launchable", Usage: "like this process: the `NAME` of a launchable, with -SCRIPT where it is a directory of scripts"},
		),
		Action: onConn(readExec, runExec),
	})
}

// readExec reads the pod; the command follows it.
func readExec(c *cli.Context) (ref string, err error) {
	if ref, err = checkPod(c, c.Args().First()); err != nil {
		return "", err
	}
	argv := c.Args().Tail()
	if len(argv) == 0 || argv[0] == "" {
		return "", usagef(c, "no command; allowed: POD -- COMMAND [arguments]")
	}
	for _, arg := range argv {
		if !utf8.ValidString(arg) {
			return "", badFlag(c, "COMMAND", arg, "a program and arguments in UTF-8; other bytes can be handed on by -i, or by printf in a shell of the pod")
		}
	}
	return ref, nil
}

func runExec(s *conn, ref string) error {
	target, client, err := preparerOf(s, ref)
	if err != nil {
		return err
	}
	defer client.Close()
	var stdin io.Reader
	if s.Bool("stdin") {
		stdin = s.in
	}
	ended, err := client.Exec(s.Context, target.Identity(), s.String("launchable"), s.Args().Tail(), stdin, bytesTo(s.flags, s.out), bytesTo(s.flags, s.err))
	switch {
	case err == nil:
		return exitOf(client, ended)
	case s.Context.Err() != nil:
		return &codedError{code: 128 + int(unix.SIGINT), text: "interrupted; the command is ended"}
	default:
		return nodeError(client, err)
	}
}

// exitOf turns the end of a command into rcctl's own.
func exitOf(client *nodeapi.Client, ended nodeapi.Ended) error {
	switch {
	case ended.Error != "":
		code := exitError
		if ended.Code == nodeapi.NotStarted || ended.Code == nodeapi.NoProgram {
			code = ended.Code
		}
		return &codedError{code: code, text: fmt.Sprintf("node %s: %s", client.Node(), ended.Error)}
	case ended.Signal != "":
		return &codedError{code: 128 + int(unix.SignalNum(ended.Signal)), text: "the command was ended by " + ended.Signal}
	case ended.Code != 0:
		return &codedError{code: ended.Code}
	default:
		return nil
	}
}
