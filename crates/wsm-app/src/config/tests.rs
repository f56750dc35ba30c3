//! Layers of configuration, and what they refuse.

use secrecy::ExposeSecret;

use super::*;
use crate::assemble::TEST_BACKENDS;

fn load(sources: &Sources) -> Result<Settings, ConfigError> {
    Settings::load(sources, TEST_BACKENDS)
}

fn variables(pairs: &[(&str, &str)]) -> Sources {
    Sources::new().with_variables(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
}

fn file(text: &str) -> (tempfile::TempDir, Sources) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("wsm.toml"), text).unwrap();
    let sources = Sources::new().with_directory(dir.path());
    (dir, sources)
}

fn set(assignments: &[&str]) -> Sources {
    assignments.iter().fold(Sources::new(), |sources, assignment| sources.with_set(assignment).unwrap())
}

fn manager(settings: &Settings, key: &str) -> String {
    settings.manager.get(key).map(ToString::to_string).unwrap_or_default()
}

#[test]
fn later_layers_win() {
    let (_dir, sources) = file("ttl = '1h'\nstore = '/a.db'\nlog = 'debug'");
    let sources = sources
        .with_variables([("WSM_TTL".to_owned(), "2h".to_owned()), ("WSM_STORE".to_owned(), "/b.db".to_owned())])
        .with_flag("--ttl", "ttl", "3h");
    let settings = load(&sources).unwrap();
    assert_eq!(manager(&settings, "ttl"), "\"3h\"");
    assert_eq!(settings.store, Path::new("/b.db"));
    assert_eq!(settings.log, "debug");
}

#[test]
fn the_backends_table_wins_within_a_layer_and_a_higher_layer_wins_over_it() {
    let (_dir, sources) = file("ttl = '1h'\nbasedir = '/top'\n[local]\nttl = '300ms'\nbasedir = '/table'");
    let settings = load(&sources).unwrap();
    assert_eq!(manager(&settings, "ttl"), "\"300ms\"");
    assert_eq!(settings.basedir.as_deref(), Some(Path::new("/table")));
    let settings = load(&sources.with_flag("--ttl", "ttl", "5m").with_flag("--basedir", "basedir", "/flag")).unwrap();
    assert_eq!(manager(&settings, "ttl"), "\"5m\"");
    assert_eq!(settings.options["basedir"].as_str(), Some("/flag"));
}

#[test]
fn one_line_swaps_the_backend() {
    let (_dir, sources) = file("backend = 'e2b'\n[local]\nbasedir = '/x'\n[e2b]\ntemplate = 'base'\nttl = '5m'");
    let settings = load(&sources).unwrap();
    assert_eq!((settings.backend.name, settings.basedir.as_deref()), ("e2b", None));
    assert_eq!(settings.options["template"].as_str(), Some("base"));
    assert!(!settings.options.contains_key("ttl"));
    assert_eq!(manager(&settings, "ttl"), "\"5m\"");
}

#[test]
fn variables_reach_tables_and_keep_names_of_the_users_choice() {
    let settings = load(&variables(&[
        ("WSM_LOCAL__BASEDIR", "/x"),
        ("WSM_LOCAL__ENV__Path", "/bin"),
        ("WSM_LOCAL__PREWARM__SIZE", "3"),
        ("WSM_AUTH__TOKENS__Ann", "t"),
        ("WSM_URL", "http://elsewhere"),
        ("WSM_SERVICE_HOST", "10.0.0.1"),
        ("WSM_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
    ]))
    .unwrap();
    assert_eq!(settings.basedir.as_deref(), Some(Path::new("/x")));
    assert_eq!(settings.options["env"]["Path"].as_str(), Some("/bin"));
    assert_eq!(manager(&settings, "prewarm"), "{ size = 3 }");
    assert!(settings.app.prewarmed);
    assert_eq!(settings.app.auth.tokens[0].0.as_str(), "Ann");
}

#[test]
fn names_with_dots_are_quoted() {
    let settings = load(&set(&["auth.tokens.\"ann@example.org\"=secret"])).unwrap();
    let (user, token) = &settings.app.auth.tokens[0];
    assert_eq!((user.as_str(), token.expose_secret()), ("ann@example.org", "secret"));
    let unquoted = Sources::new().with_set("auth.tokens.ann@example.org=x").unwrap_err().to_string();
    assert!(unquoted.contains("quotes"), "{unquoted}");
}

#[test]
fn text_that_looks_like_a_number_stays_text_where_text_is_wanted() {
    assert_eq!(load(&variables(&[("WSM_NODE", "007")])).unwrap().app.node, "007");
    let settings = load(&variables(&[("WSM_BACKEND", "e2b"), ("WSM_E2B__API_KEY", "007")])).unwrap();
    assert_eq!(settings.options["api_key"].as_str(), Some("007"));
    assert_eq!(load(&set(&["max_workspaces=7"])).unwrap().manager["max_workspaces"].as_integer(), Some(7));
}

/// A refusal names the key, what is allowed or meant, and where the value came from.
#[test]
fn what_is_not_allowed_is_refused_with_its_place() {
    let (_dir, in_file) = file("sweep_intervall = '5m'");
    for (sources, parts) in [
        (in_file, ["`sweep_intervall`", "did you mean `sweep_interval`?", "wsm.toml"]),
        (variables(&[("WSM_TLL", "5m")]), ["`tll`", "did you mean `ttl`?", "variable `WSM_TLL`"]),
        (set(&["local.basdir=/x"]), ["`local.basdir`", "did you mean `basedir`?", "flag `--set local.basdir`"]),
        (set(&["auth.tokn=x"]), ["`auth.tokn`", "did you mean `token`?", "--set"]),
        (set(&["local.prewarm.sizee=1"]), ["`local.prewarm.sizee`", "did you mean `size`?", "--set"]),
        (set(&["entirely=1"]), ["`entirely`", "known are `backend`", "--set"]),
        (variables(&[("WSM_TTL", "0s")]), ["`ttl`", "a time above zero", "WSM_TTL"]),
        (Sources::new().with_flag("--ttl", "ttl", "-5s"), ["`ttl`: `-5s`", "such as `300ms`", "flag `--ttl`"]),
        (set(&["ttl=3600"]), ["`ttl`: `3600`", "with its unit", "--set"]),
        (set(&["local.ttl=0s"]), ["`local.ttl`", "a time above zero", "--set"]),
        (set(&["max_workspaces=0"]), ["`max_workspaces`: `0`", "at least 1", "--set"]),
        (set(&["max_workspaces=-3"]), ["`max_workspaces`: `-3`", "at least 1", "--set"]),
        (set(&["isolation=per-agent"]), ["`isolation`", "`per_agent`, `per_session`, `per_user`", "--set"]),
        (set(&["listen=8080"]), ["`listen`", "an address and a port", "--set"]),
        (set(&["allow_foreign_owner=maybe"]), ["`allow_foreign_owner`", "`true` or `false`", "--set"]),
        (set(&["auth.token=secret "]), ["`auth.token`", "without spaces", "--set"]),
        (set(&["auth.tokens.ann=a\nb"]), ["`auth.tokens.ann`", "control characters", "--set"]),
        (set(&["max_upload_bytes=0"]), ["`max_upload_bytes`", "above zero", "--set"]),
        (set(&["store="]), ["`store`", "not empty", "--set"]),
        (set(&["exec_timeout=2h"]), ["`exec_timeout`", "above the ceiling `max_exec_timeout`", "--set"]),
        (set(&["backend=docker"]), ["`backend`", "built without `docker`", "--set"]),
        (set(&["backend=dokcer"]), ["`backend`", "`dokcer` is no backend", "--set"]),
        (set(&["local.attempts=many"]), ["`local.attempts`", "expected u32", "--set local.attempts"]),
        (set(&["auth=x"]), ["`auth`", "a table, not a value", "--set"]),
        (set(&["ttl={ a = 1 }"]), ["`ttl`", "a value, not a table", "--set"]),
        (set(&["auth.tokens.\"a\\tb\"=x"]), ["`auth.tokens.a\tb`", "control character", "--set"]),
    ] {
        let error = load(&sources).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    }
}

#[test]
fn a_file_that_is_named_must_exist_and_be_toml() {
    let missing = Sources::new().with_file("/nowhere/wsm.toml");
    assert!(load(&missing).unwrap_err().to_string().contains("can not be read"));
    let (_dir, broken) = file("ttl = '5m'\n[auth]\ntoken = CANARY");
    let error = load(&broken).unwrap_err().to_string();
    assert!(error.contains("line 3") && !error.contains("CANARY"), "{error}");
    let (dir, _) = file("ttl = '5m'");
    let named = variables(&[("WSM_CONFIG", dir.path().join("wsm.toml").to_str().unwrap())]);
    assert_eq!(manager(&load(&named).unwrap(), "ttl"), "\"5m\"");
}

#[test]
fn secrets_are_hidden() {
    let settings =
        load(&set(&["backend=e2b", "auth.token=CANARY", "auth.tokens.ann=CANARY", "e2b.api_key=CANARY"])).unwrap();
    assert!(!settings.show().contains("CANARY"), "{}", settings.show());
    assert!(!format!("{settings:?}").contains("CANARY"));
    for text in ["auth.token = ['CANARY']", "auth.tokens = 'CANARY'", "auth.tokens.ann = ['CANARY']"] {
        let (_dir, refused) = file(text);
        let refused = load(&refused).unwrap_err().to_string();
        assert!(!refused.contains("CANARY"), "{refused}");
    }
    let refused = load(&set(&["backend=e2b", "e2b.api_key={ a = 'CANARY' }"])).unwrap_err().to_string();
    assert!(refused.contains("`e2b.api_key`") && !refused.contains("CANARY"), "{refused}");
    let sources = set(&["auth.token=CANARY"]).with_variables([("WSM_AUTH__TOKEN".to_owned(), "CANARY".to_owned())]);
    assert!(!format!("{sources:?}").contains("CANARY"), "{sources:?}");
}

#[test]
fn what_is_shown_can_be_read_again() {
    let settings = load(&set(&["ttl=5m", "local.basedir=/x y", "prewarm.size=2", "local.env.A=b"])).unwrap();
    let shown = settings.show();
    assert!(shown.contains("ttl = \"5m\"  # the flag `--set ttl`"), "{shown}");
    assert!(shown.contains("basedir = \"/x y\"  # the flag `--set local.basedir`"), "{shown}");
    assert!(shown.contains("listen = \"127.0.0.1:8080\"  # the default"), "{shown}");
    let (_dir, again) = file(&shown);
    assert_eq!(manager(&load(&again).unwrap(), "prewarm"), "{ max_creating = 2, size = 2 }");
}

/// A key that is accepted and changes nothing would be a lie.
#[test]
fn every_key_changes_something() {
    let fingerprint = |settings: &Settings| {
        let Settings { backend, basedir, store, listen, log, log_format, app, manager, options, .. } = settings;
        format!("{} {basedir:?} {store:?} {listen} {log} {log_format:?} {app:?} {manager:?} {options:?}", backend.name)
    };
    let default = fingerprint(&load(&Sources::new()).unwrap());
    for Key { path, kind, about: _ } in APP_KEYS.iter().chain(MANAGER_KEYS) {
        let name = path.join(".");
        let value = match (name.as_str(), kind) {
            ("backend", _) => "e2b",
            ("log_format", _) => "json",
            ("isolation", _) => "per_user",
            (_, Kind::Filter) => "trace",
            (_, Kind::Text | Kind::Secret | Kind::Path) => "/changed",
            (_, Kind::Secrets) => "{ ann = 'token' }",
            (_, Kind::Address) => "127.0.0.1:1",
            // Below every ceiling.
            (_, Kind::Duration) => "7s",
            (_, Kind::Count(_) | Kind::Size) => "7",
            (_, Kind::Switch) => "true",
            (_, Kind::Choice(_)) => panic!("a value for `{name}`"),
        };
        // Ceilings stay above the defaults that they are for.
        let value = match name.as_str() {
            "max_exec_timeout" => "2h",
            "max_exec_output_limit" => "17MiB",
            _ => value,
        };
        let settings = load(&set(&[&format!("{name}={value}")])).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_ne!(fingerprint(&settings), default, "`{name}` changes nothing");
    }
}
