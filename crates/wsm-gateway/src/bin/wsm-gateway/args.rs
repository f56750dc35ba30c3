//! What the command line says.

use std::{ffi::OsString, net::IpAddr, os::fd::RawFd, path::PathBuf};

use wsm_core::WorkspaceId;

use crate::file_args::{FileAction, parse_glob, parse_grep, parse_unpack};

pub(crate) const USAGE: &str = "\
usage: wsm-gateway serve (--door N [--port N] | --fd N | --socket PATH [--token] | --port N --token | --stdio)
                         [--id ID] [--workdir DIR] [--path DIR]... [--mcp-servers N]
       wsm-gateway call [--socket PATH]
       wsm-gateway relay --socket PATH
       wsm-gateway unroute ADDRESS...
       wsm-gateway glob PATTERN [--limit N] [-i] [--directories | --any] [WHERE]
       wsm-gateway grep PATTERN [-i] [-F] [-w] [-U] [-l | -c] [-A N] [-B N] [-C N] [-g GLOB] [-t TYPE] [--limit N]
                        [--max-line-bytes N] [--max-bytes N] [WHERE]
       wsm-gateway unpack DIR [--file PATH] [--format zip|tar|tar.gz] [--overwrite refuse|replace|merge]
                        [--max-bytes N] [--max-entries N] [--max-ratio N] [--json]
       wsm-gateway version

  --door N       serve every connection that is passed over an inherited unix socket, and end with that
  --port N       serve on this port of the loopback whoever knows a token, which is told through the door if there is one
  --fd N         serve one connection over an inherited unix socket, and end with it
  --stdio        serve one connection over stdin and stdout, and end with it
  --socket PATH  listen on a unix socket, and serve every connection until SIGTERM
  --token        serve whoever knows the token in the variable WSM_GATEWAY_TOKEN, which no command gets to see
  --id ID        the workspace's id
  --workdir DIR  where commands run and relative paths start [the current directory]
  --path DIR     where commands are looked for first, below the workdir
  --mcp-servers N  how many MCP servers may live at once [16]

call reads one request from stdin, a line of JSON and then its body, and answers in frames on stdout:

  --socket PATH  by a gateway that listens there [alone]

relay passes stdin to a gateway that listens there, and its answers to stdout.

unroute makes addresses unreachable for everything in this network namespace, which takes the right to change it.

WHERE is any of --path DIR, --hidden, --no-ignore, --follow, --max-depth N, --max-entries N, --timeout SECONDS, and --json
for an answer in lines of JSON. unpack reads the archive from stdin, or from --file.";

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Serve(Serve),
    Call(Option<PathBuf>),
    /// The socket of the gateway.
    Relay(PathBuf),
    /// What is to be unreachable.
    Unroute(Vec<IpAddr>),
    /// Whether to answer in JSON.
    Files(FileAction, bool),
    Version,
    Help,
}

/// How to serve.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Serve {
    pub(crate) source: Source,
    /// With a door, where connections come in instead.
    pub(crate) port: Option<u16>,
    /// With a socket or a port alone, whether callers must know the token.
    pub(crate) token: bool,
    pub(crate) id: Option<WorkspaceId>,
    pub(crate) workdir: Option<PathBuf>,
    /// Directories below the workdir that go before all others on `PATH`.
    pub(crate) path: Vec<PathBuf>,
    pub(crate) mcp_servers: Option<usize>,
}

/// Where connections come from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Door(RawFd),
    Fd(RawFd),
    Stdio,
    Socket(PathBuf),
    Port(u16),
}

/// Understands the arguments, without the program's own name.
///
/// # Errors
///
/// What is wrong with them.
pub(crate) fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Action, String> {
    let action = args.next().ok_or("what to do is missing")?;
    let action = match action.to_str() {
        Some("serve") => return parse_serve(args).map(Action::Serve),
        Some("call") => return parse_call(args).map(Action::Call),
        Some("relay") => return parse_relay(args).map(Action::Relay),
        Some("unroute") => return parse_unroute(args).map(Action::Unroute),
        Some("glob") => return parse_glob(args).map(|(action, json)| Action::Files(action, json)),
        Some("grep") => return parse_grep(args).map(|(action, json)| Action::Files(action, json)),
        Some("unpack") => return parse_unpack(args).map(|(action, json)| Action::Files(action, json)),
        Some("version" | "--version" | "-V") => Action::Version,
        Some("help" | "--help" | "-h") => Action::Help,
        _ => return Err(format!("`{}` is nothing that can be done", action.display())),
    };
    match args.next() {
        None => Ok(action),
        Some(extra) => Err(format!("`{}` is too much", extra.display())),
    }
}

fn parse_serve(mut args: impl Iterator<Item = OsString>) -> Result<Serve, String> {
    let (mut sources, mut port, mut id, mut workdir, mut path) = (Vec::new(), None, None, None, Vec::new());
    let (mut mcp_servers, mut token) = (None, false);
    while let Some(arg) = args.next() {
        let mut value = |what: &str| args.next().ok_or(format!("`{}` needs {what}", arg.display()));
        match arg.to_str() {
            Some(option @ ("--door" | "--fd")) => {
                let number = value("the number of an open file")?;
                // The first three are the standard streams.
                let parsed = number.to_str().and_then(|text| text.parse().ok()).filter(|&number| number > 2);
                let problem = || format!("`{option}` needs a number from 3 on, and `{}` is none", number.display());
                let number = parsed.ok_or_else(problem)?;
                sources.push(if option == "--fd" { Source::Fd(number) } else { Source::Door(number) });
            }
            Some("--token") => token = true,
            Some("--port") => {
                let number = value("a port")?;
                let parsed: Option<u16> = number.to_str().and_then(|text| text.parse().ok()).filter(|&port| port > 0);
                let parsed = parsed.ok_or_else(|| format!("`{}` is no port", number.display()))?;
                if port.replace(parsed).is_some() {
                    return Err("`--port` is there twice".to_owned());
                }
            }
            Some("--id") => {
                let text = value("a workspace's id")?;
                let parsed = text.to_str().and_then(|id| WorkspaceId::new(id).ok());
                let parsed = parsed.ok_or_else(|| format!("`{}` is no workspace id", text.display()))?;
                if id.replace(parsed).is_some() {
                    return Err("`--id` is there twice".to_owned());
                }
            }
            Some("--path") => path.push(value("a directory")?.into()),
            Some("--stdio") => sources.push(Source::Stdio),
            Some("--socket") => sources.push(Source::Socket(value("a path")?.into())),
            Some("--workdir") => {
                if workdir.replace(value("a directory")?.into()).is_some() {
                    return Err("`--workdir` is there twice".to_owned());
                }
            }
            Some("--mcp-servers") => {
                let number = value("a number")?;
                let parsed = number.to_str().and_then(|text| text.parse().ok()).filter(|&number| number > 0);
                let problem =
                    || format!("`--mcp-servers` needs a number from 1 on, and `{}` is none", number.display());
                mcp_servers = Some(parsed.ok_or_else(problem)?);
            }
            _ => return Err(format!("`serve` does not know `{}`", arg.display())),
        }
    }
    if token && sources.is_empty() {
        sources.extend(port.take().map(Source::Port));
    }
    if port.is_some() && !matches!(sources[..], [Source::Door(_)]) {
        return Err(
            "`--port` needs a `--door`, through which its token is told, or `--token` and nothing else".to_owned()
        );
    }
    if token && !matches!(sources[..], [Source::Socket(_) | Source::Port(_)]) {
        return Err("`--token` needs a `--socket` or a `--port`".to_owned());
    }
    match (sources.pop(), sources.pop()) {
        (Some(source), None) => Ok(Serve { source, port, token, id, workdir, path, mcp_servers }),
        _ => Err("`serve` needs one of `--door`, `--fd`, `--socket` and `--stdio`".to_owned()),
    }
}

fn parse_call(mut args: impl Iterator<Item = OsString>) -> Result<Option<PathBuf>, String> {
    let mut socket = None;
    while let Some(arg) = args.next() {
        if arg != "--socket" {
            return Err(format!("`call` does not know `{}`", arg.display()));
        }
        if socket.replace(args.next().ok_or("`--socket` needs a path")?.into()).is_some() {
            return Err("`--socket` is there twice".to_owned());
        }
    }
    Ok(socket)
}

fn parse_unroute(args: impl Iterator<Item = OsString>) -> Result<Vec<IpAddr>, String> {
    let parse = |arg: OsString| {
        let address = arg.to_str().and_then(|text| text.parse().ok());
        address.ok_or_else(|| format!("`{}` is no address", arg.display()))
    };
    match args.map(parse).collect::<Result<Vec<_>, _>>()? {
        addresses if addresses.is_empty() => Err("`unroute` needs an address".to_owned()),
        addresses => Ok(addresses),
    }
}

fn parse_relay(mut args: impl Iterator<Item = OsString>) -> Result<PathBuf, String> {
    match (args.next(), args.next(), args.next()) {
        (Some(option), Some(path), None) if option == "--socket" => Ok(path.into()),
        (Some(option), Some(_), Some(extra)) if option == "--socket" => {
            Err(format!("`{}` is too much", extra.display()))
        }
        _ => Err("`relay` needs `--socket` and a path".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Action, String> {
        super::parse(line.split_ascii_whitespace().map(OsString::from))
    }

    #[test]
    fn every_way_to_serve_is_understood() {
        let serve = |source, workdir: Option<&str>| {
            Ok(Action::Serve(Serve {
                source,
                port: None,
                token: false,
                id: None,
                workdir: workdir.map(PathBuf::from),
                path: Vec::new(),
                mcp_servers: None,
            }))
        };
        assert_eq!(parse("serve --fd 3"), serve(Source::Fd(3), None));
        assert_eq!(parse("serve --door 3"), serve(Source::Door(3), None));
        assert_eq!(parse("serve --workdir /w --stdio"), serve(Source::Stdio, Some("/w")));
        assert_eq!(parse("serve --socket /run/s --workdir w"), serve(Source::Socket("/run/s".into()), Some("w")));
        let ported = Serve {
            source: Source::Port(9),
            port: None,
            token: true,
            id: None,
            workdir: None,
            path: Vec::new(),
            mcp_servers: None,
        };
        assert_eq!(parse("serve --port 9 --token"), Ok(Action::Serve(ported)));
        assert_eq!(
            parse("unroute 192.0.2.1 ::1"),
            Ok(Action::Unroute(vec!["192.0.2.1".parse().unwrap(), "::1".parse().unwrap()]))
        );
        assert_eq!(parse("version"), Ok(Action::Version));
        assert_eq!(parse("call"), Ok(Action::Call(None)));
        assert_eq!(parse("call --socket /run/s"), Ok(Action::Call(Some("/run/s".into()))));
    }

    #[test]
    fn the_workspace_is_described() {
        let described = Serve {
            source: Source::Stdio,
            port: None,
            token: false,
            id: Some(WorkspaceId::new("w 1").unwrap()),
            workdir: None,
            path: vec!["a/bin".into(), "b".into()],
            mcp_servers: Some(3),
        };
        let args = ["serve", "--id", "w 1", "--path", "a/bin", "--path", "b", "--mcp-servers", "3", "--stdio"];
        assert_eq!(super::parse(args.into_iter().map(OsString::from)), Ok(Action::Serve(described)));
    }

    #[test]
    fn an_error_names_what_is_wrong() {
        for (line, named) in [
            ("", "missing"),
            ("dance", "`dance`"),
            ("version now", "`now`"),
            ("serve", "needs one of"),
            ("serve --fd 3 --stdio", "needs one of"),
            ("serve --fd", "`--fd` needs"),
            ("serve --fd 2", "`2`"),
            ("serve --fd x", "`x`"),
            ("serve --door 0", "`0`"),
            ("serve --door 3 --fd 4", "needs one of"),
            ("serve --stdio --id a --id b", "twice"),
            ("serve --stdio --id", "`--id` needs"),
            ("serve --stdio --workdir", "`--workdir` needs"),
            ("serve --stdio --workdir a --workdir b", "twice"),
            ("serve --stdio --port 1", "`--port` needs a `--door`"),
            ("serve --port 1", "or `--token`"),
            ("serve --door 3 --port 1 --token", "`--token` needs"),
            ("unroute", "needs an address"),
            ("unroute here", "`here`"),
            ("serve --door 3 --port 0", "`0`"),
            ("serve --door 3 --port 1 --port 2", "twice"),
            ("serve --stdio --colour", "`--colour`"),
            ("serve --stdio --token", "`--token` needs a `--socket`"),
            ("relay", "needs `--socket`"),
            ("relay --socket", "needs `--socket`"),
            ("relay --socket a b", "`b`"),
            ("call --socket", "`--socket` needs"),
            ("call me", "`me`"),
            ("glob", "needs a pattern"),
            ("serve --stdio --mcp-servers 0", "from 1 on"),
            ("serve --stdio --mcp-servers many", "`many`"),
        ] {
            let problem = parse(line).unwrap_err();
            assert!(problem.contains(named), "{line}: {problem}");
        }
    }
}
