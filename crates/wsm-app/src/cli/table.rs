//! Tables for people.

use comfy_table::{ContentArrangement, Table, presets};

/// A table without lines and colours, so that it can also be cut into columns by other programs.
pub(super) fn table(header: &[&str]) -> Table {
    let mut table = bare();
    table.set_header(header);
    table
}

/// A table of names and values.
pub(super) fn bare() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// The table as text, without spaces at the ends of lines.
pub(super) fn text(table: &Table) -> String {
    let lines = table.to_string();
    lines.lines().map(|line| line.strip_prefix(' ').unwrap_or(line).trim_end().to_owned() + "\n").collect()
}

/// How long something took, in the two largest units.
pub(super) fn duration(seconds: f64) -> String {
    let whole = std::time::Duration::try_from_secs_f64(seconds.floor()).unwrap_or_default();
    let text = humantime::format_duration(whole).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}
