//! Refuses keys that nobody reads.

use super::{
    ConfigError,
    key::{APP_KEYS, MANAGER_KEYS},
    tree::Node,
};
use crate::assemble::{BackendKind, KNOWN_BACKENDS};

/// Checks every key of a tree; the first unknown one is refused with the nearest known one.
pub(super) fn check_known(tree: &Node, backends: &[BackendKind]) -> Result<(), ConfigError> {
    let mut top: Vec<&str> = APP_KEYS.iter().chain(MANAGER_KEYS).map(|key| key.path[0]).collect();
    top.dedup();
    top.extend(KNOWN_BACKENDS);
    check_table(tree, "", &top)?;
    for name in ["auth", "prewarm"] {
        if let Some(node) = tree.get(&[name]) {
            check_table(node, name, &names_below(name))?;
        }
    }
    for backend in backends {
        if let Some(node) = tree.get(&[backend.name]) {
            let own = backend.option_keys().iter().copied();
            let mut known: Vec<&str> = own.chain(MANAGER_KEYS.iter().map(|key| key.path[0])).collect();
            // The keys of a table stand beside each other.
            known.dedup();
            check_table(node, backend.name, &known)?;
            if let Some(node) = node.get(&["prewarm"]) {
                check_table(node, &format!("{}.prewarm", backend.name), &names_below("prewarm"))?;
            }
        }
    }
    Ok(())
}

fn names_below(table: &str) -> Vec<&'static str> {
    let keys = APP_KEYS.iter().chain(MANAGER_KEYS);
    keys.filter(|key| key.path[0] == table).filter_map(|key| key.path.get(1).copied()).collect()
}

fn check_table(node: &Node, name: &str, known: &[&str]) -> Result<(), ConfigError> {
    let table = match node {
        Node::Table(table) => table,
        Node::Leaf(leaf) => return Err(ConfigError::new(name, &leaf.origin, "this is a table, not a value")),
    };
    for (key, node) in table {
        if known.contains(&key.as_str()) {
            continue;
        }
        let path = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
        let Some(leaf) = node.any_leaf() else { continue };
        let nearest = known
            .iter()
            .map(|known| (strsim::damerau_levenshtein(key, known), *known))
            .min()
            .filter(|(distance, known)| *distance <= (known.len() / 3).max(2));
        let hint = match nearest {
            Some((_, nearest)) => format!("did you mean `{nearest}`?"),
            None => format!("known are {}", known.iter().map(|it| format!("`{it}`")).collect::<Vec<_>>().join(", ")),
        };
        return Err(ConfigError::new(&path, &leaf.origin, format!("no such key: {hint}")));
    }
    Ok(())
}
