//! What `wsm` says about itself.

use std::path::Path;

use super::{output, told};

const COMMANDS: [&[&str]; 15] = [
    &[],
    &["serve"],
    &["run"],
    &["ls"],
    &["show"],
    &["exec"],
    &["cp"],
    &["close"],
    &["destroy"],
    &["gc"],
    &["doctor"],
    &["config"],
    &["config", "show"],
    &["config", "keys"],
    &["completions"],
];

/// `UPDATE_SNAPSHOTS=1 cargo test -p wsm-app` writes the file anew.
#[test]
fn the_help_is_the_committed_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut all = String::new();
    for command in COMMANDS {
        let (code, text, errors) = told(output(dir.path(), &[command, &["--help"]].concat()));
        assert_eq!((code, errors.as_str()), (0, ""));
        let rule = "=".repeat(20);
        all += &format!("{rule} wsm {} {rule}\n{text}\n", command.join(" "));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/help.txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, all).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == all, "the help changed: run the tests with UPDATE_SNAPSHOTS=1 and look at the difference");
}

#[test]
fn every_command_is_in_the_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let (_, text, _) = told(output(dir.path(), &["--help"]));
    let listed = text.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let listed: Vec<_> =
        listed.map(|line| line.split_whitespace().next().unwrap()).filter(|it| *it != "help").collect();
    assert!(!listed.is_empty());
    for name in listed {
        assert!(COMMANDS.iter().any(|command| command.first() == Some(&name)), "{name}");
    }
}

#[test]
fn secrets_in_variables_are_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let help = super::wsm(dir.path(), &["exec", "--help"]).env("WSM_TOKEN", "CANARY").output().unwrap();
    assert!(!told(help).1.contains("CANARY"));
}

#[test]
fn every_shell_gets_its_completions() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, script, errors) = told(output(dir.path(), &["completions", shell]));
        assert_eq!((code, errors.as_str()), (0, ""));
        assert!(script.contains("destroy") && script.contains("isolation"), "{shell}");
    }
    assert_eq!(told(output(dir.path(), &["completions", "sh"])).0, 2);
}
