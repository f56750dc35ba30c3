//! The effective configuration, for people.

use toml::{Table, Value};

use super::{
    LogFormat, Settings, leaf, stronger,
    tree::{Node, Origin},
};
use crate::{app::Limits, assemble::effective_manager_options};

impl Settings {
    /// The effective configuration as TOML with where each value came from, secrets hidden.
    pub fn show(&self) -> String {
        let Limits {
            exec_timeout,
            max_exec_timeout,
            exec_output_limit,
            max_exec_output_limit,
            max_request_bytes,
            max_upload_bytes,
            max_body_pause,
            head_timeout,
        } = self.app.limits;
        let time = |duration| humantime::format_duration(duration).to_string();
        let mut effective = Table::new();
        let mut put = |key: &str, value: Value| {
            effective.insert(key.to_owned(), value);
        };
        put("backend", self.backend.name.into());
        put("store", self.store.to_string_lossy().into_owned().into());
        put("listen", self.listen.to_string().into());
        put("node", self.app.node.clone().into());
        put("log", self.log.clone().into());
        put("log_format", if self.log_format == LogFormat::Json { "json" } else { "text" }.into());
        put("shutdown_timeout", time(self.app.shutdown_timeout).into());
        put("exec_timeout", time(exec_timeout).into());
        put("max_exec_timeout", time(max_exec_timeout).into());
        put("max_body_pause", time(max_body_pause).into());
        put("head_timeout", time(head_timeout).into());
        for (key, bytes) in [
            ("exec_output_limit", exec_output_limit as u64),
            ("max_exec_output_limit", max_exec_output_limit as u64),
            ("max_request_bytes", max_request_bytes as u64),
            ("max_upload_bytes", max_upload_bytes),
        ] {
            put(key, i64::try_from(bytes).unwrap_or(i64::MAX).into());
        }
        if let Some(auth) = self.tree.get(&["auth"]) {
            put("auth", auth.to_value());
        }
        // Checked when the configuration was read.
        for (key, value) in effective_manager_options(self).unwrap_or_default() {
            put(&key, value);
        }
        put(self.backend.name, Value::Table(self.options.clone()));

        let mut plain = String::new();
        let mut tables = String::new();
        self.show_table(&mut plain, &mut tables, &mut Vec::new(), &effective);
        plain + &tables
    }

    fn show_table(&self, plain: &mut String, tables: &mut String, path: &mut Vec<String>, table: &Table) {
        for (key, value) in table {
            path.push(key.clone());
            if let Value::Table(table) = value {
                let mut lines = String::new();
                let mut below = String::new();
                self.show_table(&mut lines, &mut below, path, table);
                let name = path.iter().map(|key| quoted_key(key)).collect::<Vec<_>>().join(".");
                if !lines.is_empty() {
                    tables.push_str(&format!("\n[{name}]\n{lines}"));
                }
                tables.push_str(&below);
            } else {
                let shown = if is_secret(path) { "\"<hidden>\"".to_owned() } else { value.to_string() };
                let origin = self.origin_of(path).map_or_else(|| "the default".to_owned(), |it| it.to_string());
                plain.push_str(&format!("{} = {shown}  # {origin}\n", quoted_key(key)));
            }
            path.pop();
        }
    }

    fn origin_of(&self, path: &[String]) -> Option<Origin> {
        let mut in_table = vec![self.backend.name.to_owned()];
        in_table.extend_from_slice(path);
        let leaf = stronger(leaf(&self.tree, path), leaf(&self.tree, &in_table));
        // `basedir` is shown in the backend's table, wherever it stands.
        leaf.or_else(|| self.tree.get(&path[path.len() - 1..]).and_then(Node::any_leaf).filter(|_| path.len() == 2))
            .map(|leaf| leaf.origin.clone())
    }
}

/// Whether a value is hidden: tokens, keys, and variables that commands are given.
pub(super) fn is_secret(path: &[String]) -> bool {
    let secret_word = |key: &String| ["token", "secret", "password", "api_key"].iter().any(|word| key.contains(word));
    path.iter().any(|key| key == "auth" || key == "env" || secret_word(key))
}

fn quoted_key(key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if bare { key.to_owned() } else { Value::String(key.to_owned()).to_string() }
}
