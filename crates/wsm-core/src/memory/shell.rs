//! As much of a shell as tests need.

use super::{
    programs::{Machine, Sink, code, run_program},
    tree::resolve,
};
use crate::exec::{ExitStatus, Signal};

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    /// `;` or a new line.
    Then,
    /// `&&`.
    AndThen,
    /// `>` or `>>`; true when it appends.
    Into(bool),
    /// `<`.
    From,
    /// `>&2`.
    IntoStderr,
}

/// Runs the commands of a line one after the other. The status is the last one's.
pub(super) async fn run_line(line: &str, machine: &mut Machine, sink: &Sink) -> ExitStatus {
    let tokens = tokenize(line, machine);
    let mut status = code(0);
    let mut skip = false;
    for command in tokens.split_inclusive(|token| matches!(token, Token::Then | Token::AndThen)) {
        if !skip {
            let Some(words) = prepare(command, machine, sink) else {
                machine.print(&Sink::Stderr, "sh: bad redirection\n").await;
                return code(2);
            };
            let Prepared { argv, sink } = words;
            match argv.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                [] => {}
                ["exit"] => return status,
                ["exit", number] => return code(number.parse().unwrap_or(2)),
                ["kill", signal, "1"] => return signal_by_name(signal),
                ["cd", directory] => match resolve(&machine.cwd, directory) {
                    Ok(cwd) => machine.cwd = cwd,
                    Err(_) => status = code(1),
                },
                _ => status = run_program(&argv, machine, &sink).await,
            }
        }
        skip = matches!(command.last(), Some(Token::AndThen)) && !status.success();
    }
    status
}

struct Prepared {
    argv: Vec<String>,
    sink: Sink,
}

/// Opens what the redirections name. None when that fails.
fn prepare(command: &[Token], machine: &mut Machine, sink: &Sink) -> Option<Prepared> {
    let mut prepared = Prepared { argv: Vec::new(), sink: sink.clone() };
    let mut tokens = command.iter();
    while let Some(token) = tokens.next() {
        match token {
            Token::Word(word) => prepared.argv.push(word.clone()),
            Token::IntoStderr => prepared.sink = Sink::Stderr,
            Token::Into(append) => {
                let Some(Token::Word(path)) = tokens.next() else { return None };
                let path = resolve(&machine.cwd, path).ok()?;
                machine.engine.with_one(&machine.id, |sandbox| {
                    if *append {
                        sandbox.tree.append(&path, b"").ok()
                    } else {
                        sandbox.tree.write(&path, bytes::Bytes::new(), None, false, true).ok().map(drop)
                    }
                })??;
                prepared.sink = Sink::File(path);
            }
            Token::From => {
                let Some(Token::Word(path)) = tokens.next() else { return None };
                let path = resolve(&machine.cwd, path).ok()?;
                let (_, bytes) = machine.engine.with_one(&machine.id, |sandbox| sandbox.tree.read(&path).ok())??;
                machine.stdin = Box::new(std::io::Cursor::new(bytes));
            }
            Token::Then | Token::AndThen => {}
        }
    }
    Some(prepared)
}

fn signal_by_name(name: &str) -> ExitStatus {
    let signal = match name.trim_start_matches('-').trim_start_matches("SIG") {
        "KILL" | "9" => Signal::Kill,
        "INT" | "2" => Signal::Interrupt,
        "HUP" | "1" => Signal::Hangup,
        _ => Signal::Terminate,
    };
    ExitStatus::Signaled { signal: signal.number() }
}

fn tokenize(line: &str, machine: &Machine) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = line.chars().peekable();
    let end_word = |word: &mut Option<String>, tokens: &mut Vec<Token>| {
        tokens.extend(word.take().map(Token::Word));
    };
    while let Some(c) = rest.next() {
        match c {
            ' ' | '\t' => end_word(&mut word, &mut tokens),
            ';' | '\n' => {
                end_word(&mut word, &mut tokens);
                tokens.push(Token::Then);
            }
            '&' if rest.peek() == Some(&'&') => {
                rest.next();
                end_word(&mut word, &mut tokens);
                tokens.push(Token::AndThen);
            }
            '<' => {
                end_word(&mut word, &mut tokens);
                tokens.push(Token::From);
            }
            '>' => {
                end_word(&mut word, &mut tokens);
                match rest.peek() {
                    Some('>') => {
                        rest.next();
                        tokens.push(Token::Into(true));
                    }
                    Some('&') => {
                        rest.next();
                        rest.next_if_eq(&'2');
                        tokens.push(Token::IntoStderr);
                    }
                    _ => tokens.push(Token::Into(false)),
                }
            }
            '\'' => word.get_or_insert_default().extend(rest.by_ref().take_while(|c| *c != '\'')),
            '"' => {
                let quoted: String = rest.by_ref().take_while(|c| *c != '"').collect();
                let mut quoted = quoted.chars().peekable();
                let word = word.get_or_insert_default();
                while let Some(c) = quoted.next() {
                    if c == '$' { word.push_str(&variable(&mut quoted, machine)) } else { word.push(c) }
                }
            }
            '$' => word.get_or_insert_default().push_str(&variable(&mut rest, machine)),
            c => word.get_or_insert_default().push(c),
        }
    }
    end_word(&mut word, &mut tokens);
    tokens
}

/// The value of the variable whose name comes next. The shell's own process is always number 1.
fn variable(rest: &mut std::iter::Peekable<impl Iterator<Item = char>>, machine: &Machine) -> String {
    if rest.next_if_eq(&'$').is_some() {
        return "1".to_owned();
    }
    if let Some(digit) = rest.peek().and_then(|c| c.to_digit(10)) {
        rest.next();
        return machine.args.get(digit as usize).cloned().unwrap_or_default();
    }
    let mut name = String::new();
    while let Some(c) = rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
        name.push(c);
    }
    machine.env.get(&name).cloned().unwrap_or_default()
}
