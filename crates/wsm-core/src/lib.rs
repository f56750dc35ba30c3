#![doc = include_str!("../README.md")]

mod backend;
mod capability;
mod capture;
mod coordinate;
mod encode;
mod error;
mod event;
mod exec;
mod exec_files;
mod files;
mod guard;
mod id;
mod layer;
mod manager;
pub mod memory;
mod policy;
mod progress;
mod scope;
mod variables;
mod workspace;

pub use backend::{
    Backend, BackendConfig, Cause, Checkpoint, FOREIGN_OWNER, FoundState, FoundWorkspace, InitProgram, Leftover,
    LeftoverKind, Loss, OpenRequest, Opened, Outcome, OutcomeKind, Placement, Probe, Ready, SweepTrigger,
};
pub use capability::Capabilities;
pub use capture::Capture;
pub use coordinate::{Coordinator, CoordinatorLock, Entered, InProcess, Leave, Release, Renewed};
pub use encode::Encoding;
pub use error::{Error, ErrorKind, Result, Retry};
pub use event::{Event, EventKind, EventListener, EventStream, EvictReason};
pub use exec::{
    Command, DEFAULT_OUTPUT_LIMIT, ExecResult, ExitStatus, Output, Process, ProcessControl, ProcessEvent,
    ProcessOutput, ProcessStdin, Signal,
};
pub use exec_files::ExecFiles;
pub use files::{
    ByteStream, DirEntry, FileKind, MAX_PATH_BYTES, Metadata, ReadFile, ReadOptions, RemoveOptions, WriteOptions,
    byte_stream, validate_path,
};
pub use guard::CapabilityGuard;
pub use id::{AgentId, IdError, MAX_ID_BYTES, SessionId, UserId, WorkspaceId};
pub use layer::{Layer, OpenedInfo};
pub use manager::{
    CachedState, CachedWorkspace, CachingManager, CloseOptions, CloseReport, GetRequest, ManagerBuilder,
    ManagerSettings, Opening, Prewarm, WorkspaceHandle, WorkspaceManager,
};
pub use policy::IsolationPolicy;
pub use progress::{Progress, Step};
pub use scope::Scope;
pub use variables::Variables;
pub use workspace::{
    ByteChannel, Connection, Endpoint, Health, ManagedWorkspace, Workspace, WorkspaceExt, WorkspaceInfo,
};

/// The version of the contract in this crate. The gateway's hello carries it.
pub const CONTRACT_VERSION: u32 = 1;
