//! What the command line says.

use std::{ffi::OsString, os::fd::RawFd, path::PathBuf};

pub(crate) const USAGE: &str = "\
usage: wsm-gateway serve (--fd N | --socket PATH | --stdio) [--workdir DIR] [--mcp-servers N]
       wsm-gateway version

  --fd N         serve one connection over an inherited unix socket, and end with it
  --stdio        serve one connection over stdin and stdout, and end with it
  --socket PATH  listen on a unix socket, and serve every connection until SIGTERM
  --workdir DIR  where commands run and relative paths start [the current directory]
  --mcp-servers N  how many MCP servers may live at once [16]";

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Serve(Serve),
    Version,
    Help,
}

/// How to serve.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Serve {
    pub(crate) source: Source,
    pub(crate) workdir: Option<PathBuf>,
    pub(crate) mcp_servers: Option<usize>,
}

/// Where connections come from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Fd(RawFd),
    Stdio,
    Socket(PathBuf),
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
    let (mut sources, mut workdir, mut mcp_servers) = (Vec::new(), None, None);
    while let Some(arg) = args.next() {
        let mut value = |what: &str| args.next().ok_or(format!("`{}` needs {what}", arg.display()));
        match arg.to_str() {
            Some("--fd") => {
                let number = value("the number of an open file")?;
                // The first three are the standard streams.
                let parsed = number.to_str().and_then(|text| text.parse().ok()).filter(|&number| number > 2);
                let problem = || format!("`--fd` needs a number from 3 on, and `{}` is none", number.display());
                sources.push(Source::Fd(parsed.ok_or_else(problem)?));
            }
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
    match (sources.pop(), sources.pop()) {
        (Some(source), None) => Ok(Serve { source, workdir, mcp_servers }),
        _ => Err("`serve` needs one of `--fd`, `--socket` and `--stdio`".to_owned()),
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
            let workdir = workdir.map(PathBuf::from);
            Ok(Action::Serve(Serve { source, workdir, mcp_servers: None }))
        };
        assert_eq!(parse("serve --fd 3"), serve(Source::Fd(3), None));
        assert_eq!(parse("serve --workdir /w --stdio"), serve(Source::Stdio, Some("/w")));
        assert_eq!(parse("serve --socket /run/s --workdir w"), serve(Source::Socket("/run/s".into()), Some("w")));
        assert_eq!(
            parse("serve --mcp-servers 3 --stdio"),
            Ok(Action::Serve(Serve { source: Source::Stdio, workdir: None, mcp_servers: Some(3) }))
        );
        assert_eq!(parse("version"), Ok(Action::Version));
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
            ("serve --stdio --workdir", "`--workdir` needs"),
            ("serve --stdio --workdir a --workdir b", "twice"),
            ("serve --stdio --mcp-servers 0", "from 1 on"),
            ("serve --stdio --mcp-servers many", "`many`"),
            ("serve --stdio --port 1", "`--port`"),
        ] {
            let problem = parse(line).unwrap_err();
            assert!(problem.contains(named), "{line}: {problem}");
        }
    }
}
