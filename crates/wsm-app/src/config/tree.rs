//! Values with where each came from, merged from several layers.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use toml::{Table, Value};

/// Where a value came from. Later ones win.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A configuration file.
    File(PathBuf),
    /// An environment variable.
    Variable(String),
    /// A flag of the command line.
    Flag(String),
}

impl Origin {
    /// The layer's rank: a higher one wins.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Self::File(_) => 1,
            Self::Variable(_) => 2,
            Self::Flag(_) => 3,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "the file `{}`", path.display()),
            Self::Variable(name) => write!(f, "the environment variable `{name}`"),
            Self::Flag(name) => write!(f, "the flag `{name}`"),
        }
    }
}

/// A value and where it came from.
#[derive(Clone)]
pub(crate) struct Leaf {
    pub(crate) value: Value,
    /// What was written, where that was plain text and not TOML: `007` is a fine name.
    raw: Option<String>,
    pub(crate) origin: Origin,
}

/// Values may be secrets.
impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaf").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Leaf {
    /// The value as text. What was given as plain text is exactly that; a number is its digits.
    pub(crate) fn text(&self) -> Option<String> {
        match (&self.raw, &self.value) {
            (_, Value::String(text)) => Some(text.clone()),
            (Some(raw), _) => Some(raw.clone()),
            (None, Value::Integer(number)) => Some(number.to_string()),
            (None, _) => None,
        }
    }

    /// The value for an error message.
    pub(crate) fn shown(&self) -> String {
        self.text().unwrap_or_else(|| self.value.to_string())
    }
}

/// A leaf, or a table of nodes.
#[derive(Debug, Clone)]
pub(crate) enum Node {
    Leaf(Leaf),
    Table(BTreeMap<String, Node>),
}

impl Default for Node {
    fn default() -> Self {
        Self::Table(BTreeMap::new())
    }
}

impl Node {
    /// A whole file.
    pub(crate) fn from_table(table: Table, origin: &Origin) -> Self {
        Self::from_value(Value::Table(table), None, origin)
    }

    fn from_value(value: Value, raw: Option<String>, origin: &Origin) -> Self {
        match value {
            Value::Table(table) => {
                let node = |(key, value)| (key, Self::from_value(value, None, origin));
                Self::Table(table.into_iter().map(node).collect())
            }
            value => Self::Leaf(Leaf { value, raw, origin: origin.clone() }),
        }
    }

    /// One value from plain text: a TOML value where it is one, else the text itself.
    pub(crate) fn from_text(path: &[String], text: &str, origin: &Origin) -> Self {
        let parsed = format!("value = {text}").parse::<Table>().ok().filter(|table| table.len() == 1);
        let value =
            parsed.and_then(|mut table| table.remove("value")).unwrap_or_else(|| Value::String(text.to_owned()));
        let leaf = Self::from_value(value, Some(text.to_owned()), origin);
        path.iter().rev().fold(leaf, |node, key| Self::Table(BTreeMap::from([(key.clone(), node)])))
    }

    /// Lays `over` on top: tables are joined, all else is replaced.
    pub(crate) fn merge(&mut self, over: Self) {
        match (self, over) {
            (Self::Table(below), Self::Table(over)) => {
                for (key, node) in over {
                    below.entry(key).or_default().merge(node);
                }
            }
            (below, over) => *below = over,
        }
    }

    /// Finds a node.
    pub(crate) fn get(&self, path: &[impl AsRef<str>]) -> Option<&Self> {
        path.iter().try_fold(self, |node, key| match node {
            Self::Table(table) => table.get(key.as_ref()),
            Self::Leaf(_) => None,
        })
    }

    /// Some value below this node, to tell where it came from.
    pub(crate) fn any_leaf(&self) -> Option<&Leaf> {
        match self {
            Self::Leaf(leaf) => Some(leaf),
            Self::Table(table) => table.values().find_map(Self::any_leaf),
        }
    }

    /// The plain value, without origins.
    pub(crate) fn to_value(&self) -> Value {
        match self {
            Self::Leaf(leaf) => leaf.value.clone(),
            Self::Table(table) => {
                Value::Table(table.iter().map(|(key, node)| (key.clone(), node.to_value())).collect())
            }
        }
    }

    /// The plain value with what was given as plain text left as text: `8080` may be a number or a string.
    pub(crate) fn to_text_value(&self) -> Value {
        match self {
            Self::Leaf(leaf) => leaf.raw.clone().map_or_else(|| leaf.value.clone(), Value::String),
            Self::Table(table) => {
                Value::Table(table.iter().map(|(key, node)| (key.clone(), node.to_text_value())).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flag(path: &str, text: &str) -> Node {
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        Node::from_text(&path, text, &Origin::Flag("--set".to_owned()))
    }

    #[test]
    fn text_that_is_no_toml_value_is_text() {
        for (text, value) in [
            ("5", Value::Integer(5)),
            ("true", Value::Boolean(true)),
            ("5m", Value::String("5m".to_owned())),
            ("'5'", Value::String("5".to_owned())),
            ("/a b", Value::String("/a b".to_owned())),
            ("1\nx = 2", Value::String("1\nx = 2".to_owned())),
            ("", Value::String(String::new())),
        ] {
            assert_eq!(flag("a", text).get(&["a"]).unwrap().to_value(), value, "{text:?}");
        }
        assert_eq!(flag("a", "007").get(&["a"]).unwrap().any_leaf().unwrap().text().unwrap(), "007");
    }

    #[test]
    fn tables_join_and_values_replace() {
        let mut node = flag("a.b", "1");
        node.merge(flag("a.c", "2"));
        node.merge(flag("a.b", "3"));
        assert_eq!(node.to_value(), toml::from_str::<Value>("a = { b = 3, c = 2 }").unwrap());
        node.merge(flag("a", "{ d = 4 }"));
        assert_eq!(node.get(&["a", "d"]).unwrap().to_value(), Value::Integer(4));
    }
}
