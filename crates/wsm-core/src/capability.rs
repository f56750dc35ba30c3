//! What a backend can do beyond running a command to its end.

use serde::{Deserialize, Serialize};

/// What a workspace can do beyond [`exec`](crate::Workspace::exec), which all can.
///
/// A call that is not declared here is refused before the backend sees it. Start from [`Capabilities::NONE`]:
///
/// ```
/// use wsm_core::Capabilities;
///
/// let capabilities = Capabilities::NONE.with_spawn(true).with_shell(true);
/// assert!(capabilities.spawn && !capabilities.files);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Capabilities {
    /// [`spawn`](crate::Workspace::spawn): commands with streamed output and stdin.
    pub spawn: bool,
    /// `read`, `write`, `stat`, `list`, `make_dir`, `remove` and `rename`, natively or by an adapter.
    pub files: bool,
    /// File paths that lead out of the workspace directory are refused, also through symbolic links. Without it, the
    /// sandbox itself is the border.
    pub confined_files: bool,
    /// The workspace has `sh` and the POSIX tools, so that file operations can be made of commands.
    pub shell: bool,
    /// Children that a command leaves in the background survive its normal end.
    pub background: bool,
    /// [`connect`](crate::Workspace::connect): byte streams or HTTP to something that listens inside.
    pub connect: bool,
    /// [`OpenRequest::init`](crate::OpenRequest::init) is run as the first process.
    pub init: bool,
    /// The network of the workspace can be switched off or filtered.
    pub network_control: bool,
    /// The workspace lives on this machine alone; another replica can not reach it.
    pub node_bound: bool,
}

macro_rules! setters {
    ($($setter:ident => $field:ident),* $(,)?) => {
        $(
            #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
            #[must_use]
            pub const fn $setter(mut self, yes: bool) -> Self {
                self.$field = yes;
                self
            }
        )*
    };
}

impl Capabilities {
    /// Nothing but `exec`.
    pub const NONE: Self = Self {
        spawn: false,
        files: false,
        confined_files: false,
        shell: false,
        background: false,
        connect: false,
        init: false,
        network_control: false,
        node_bound: false,
    };

    setters! {
        with_spawn => spawn,
        with_files => files,
        with_confined_files => confined_files,
        with_shell => shell,
        with_background => background,
        with_connect => connect,
        with_init => init,
        with_network_control => network_control,
        with_node_bound => node_bound,
    }
}
