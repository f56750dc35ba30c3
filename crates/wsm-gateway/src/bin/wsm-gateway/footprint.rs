//! Gives pages of the program back that were only needed to start, or to do something that is over.
//!
//! They count for each of many sandboxes. What is needed again comes back from the kernel's cache, which they share.
#![expect(unsafe_code, reason = "no safe call says that mapped pages are not needed")]

use std::fs;

use rustix::mm::{Advice, madvise};

/// Forgets the pages of the program's own code. Where it can not be found out which those are, nothing happens.
pub(crate) fn forget_code() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let code = maps.lines().filter_map(code_range);
    for (start, end) in code {
        // SAFETY: the range is one mapping of this program's file, which nobody writes to: it is private, can be executed and
        // not written. A page that is forgotten is read from the file again when it is touched.
        let _ = unsafe { madvise(start as *mut _, end - start, Advice::LinuxDontNeed) };
    }
}

/// The mapping that a line describes, if it holds code out of a file: its first address, and the one after its last.
fn code_range(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (range, permissions, inode) = (fields.next()?, fields.next()?, fields.nth(2)?);
    if permissions != "r-xp" || inode == "0" {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some((address(start)?, address(end)?)).filter(|(start, end)| start < end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_out_of_files_is_forgotten() {
        let code = "7f00a000-7f00c000 r-xp 0005f000 fe:00 1234                 /run/wsm/init";
        assert_eq!(code_range(code), Some((0x7f00_a000, 0x7f00_c000)));
        for other in [
            "7f00a000-7f00c000 r--p 0005f000 fe:00 1234                 /run/wsm/init",
            "7f00a000-7f00c000 rw-p 0005f000 fe:00 1234                 /run/wsm/init",
            "7ffd0000-7ffd2000 r-xp 00000000 00:00 0                    [vdso]",
            "",
        ] {
            assert_eq!(code_range(other), None, "{other}");
        }
        forget_code();
        assert!(!fs::read_to_string("/proc/self/maps").unwrap().is_empty(), "it goes on");
    }
}
