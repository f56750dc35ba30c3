//! The cases, in the order of the rules.

mod concurrency;
mod exec;
mod faults;
mod files;
mod identity;
mod lifecycle;
mod streams;

use futures::future::BoxFuture;
use wsm_core::Capabilities;

use crate::{
    context::{Context, effective},
    subject::Subject,
};

/// One case of the suite.
#[derive(Clone)]
pub(crate) struct Case {
    /// The number of the rule that it shows.
    rule: &'static str,
    name: &'static str,
    needs: &'static [Need],
    pub(crate) body: fn(Context) -> BoxFuture<'static, ()>,
}

/// What a case needs of the backend.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Need {
    Spawn,
    Files,
    ConfinedFiles,
    Shell,
    Background,
    Faults,
}

impl Case {
    /// The case's name, such as `E3_the_exit_code_is_the_commands_own`.
    pub(crate) fn name(&self) -> String {
        format!("{}_{}", self.rule, self.name)
    }

    pub(crate) fn makes_the_engine_fail(&self) -> bool {
        self.needs.iter().any(|need| matches!(need, Need::Faults))
    }

    pub(crate) fn reason_to_skip(&self, capabilities: &Capabilities, subject: &Subject) -> Option<String> {
        let capabilities = effective(*capabilities);
        self.needs.iter().find_map(|need| {
            let (there, what) = match need {
                Need::Spawn => (capabilities.spawn, "the backend does not declare `spawn`"),
                Need::Files => (capabilities.files, "the backend does not declare `files`"),
                Need::ConfinedFiles => (capabilities.confined_files, "the backend does not declare `confined_files`"),
                Need::Shell => (capabilities.shell, "the backend does not declare `shell`"),
                Need::Background => (capabilities.background, "the backend does not declare `background`"),
                Need::Faults => (subject.faults().is_some(), "the subject can not make its engine fail"),
            };
            (!there).then(|| what.to_owned())
        })
    }
}

/// Lists the cases of a module: rule, function, needs.
macro_rules! cases {
    ($($rule:ident $name:ident [$($need:ident)*];)*) => {
        pub(super) fn cases() -> Vec<crate::cases::Case> {
            vec![$(crate::cases::Case {
                rule: stringify!($rule),
                name: stringify!($name),
                needs: &[$(crate::cases::Need::$need),*],
                body: |context| Box::pin($name(context)),
            }),*]
        }
    };
}
pub(crate) use cases;

/// Every case.
pub(crate) fn all() -> Vec<Case> {
    let modules = [
        exec::cases,
        streams::cases,
        files::cases,
        lifecycle::cases,
        identity::cases,
        faults::cases,
        concurrency::cases,
    ];
    modules.into_iter().flat_map(|cases| cases()).collect()
}
