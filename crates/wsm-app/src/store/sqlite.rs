//! The store in one SQLite file.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use sqlx::{
    ConnectOptions, Connection, Row, SqliteConnection, SqlitePool,
    migrate::{MigrateError, Migrator},
    sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteRow, SqliteSynchronous},
};
use tokio::time::Instant;
use wsm_core::{Error, ErrorKind, IsolationPolicy, Result, Scope, SessionId, UserId, WorkspaceId};

use super::{
    Claimed, Retired, SessionClaim, SessionPage, SessionRecord, Store, Told, WorkspaceRecord, foreign_owner,
    now_in_millis,
};

static MIGRATIONS: Migrator = sqlx::migrate!("src/store/migrations");

/// Marks a database as ours; set by the first migration.
const APPLICATION_ID: i64 = 0x7773_6d31;

/// How long a statement waits for another process to finish its transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an opening waits before it tries again.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// How many connections read side by side; there is never more than one writer.
const MAX_CONNECTIONS: u32 = 4;

/// A [`Store`] in one SQLite file: write-ahead log, every commit on disk before it is answered.
///
/// Several processes may use one file at once; [`StoreLock`](super::StoreLock) is what keeps services apart.
#[derive(Debug)]
pub struct SqliteStore {
    pool: SqlitePool,
    path: PathBuf,
}

impl SqliteStore {
    /// Opens the store, which is made with its directory when it does not exist.
    ///
    /// # Errors
    ///
    /// `invalid_input` about `store` when the file is not a store, or one of a newer wsm: it is left as it was.
    /// `backend` when it can not be opened.
    pub async fn open(path: &Path) -> Result<Self> {
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            tokio::fs::create_dir_all(parent).await.map_err(|error| cannot_open(path, error))?;
        }
        // Who works with which agent is nobody else's business. The files beside it get the same permissions.
        let mut private = tokio::fs::OpenOptions::new();
        private.create(true).append(true).mode(0o600).open(path).await.map_err(|error| cannot_open(path, error))?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT)
            .synchronous(SqliteSynchronous::Full)
            .disable_statement_logging();
        migrate(path, &options).await?;
        let pool = SqlitePoolOptions::new()
            .max_connections(MAX_CONNECTIONS)
            .acquire_timeout(BUSY_TIMEOUT)
            .after_release(|connection, _| Box::pin(is_clean(connection)))
            .connect_with(options)
            .await
            .map_err(|error| cannot_open(path, error))?;
        Ok(Self { pool, path: path.to_owned() })
    }

    /// Looks at a store that exists, in use or not, and changes nothing.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub async fn inspect(path: &Path) -> Result<StoreReport> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .read_only(true)
            .busy_timeout(BUSY_TIMEOUT)
            .disable_statement_logging();
        let cannot_open = |error| cannot_open(path, error);
        let mut connection = SqliteConnection::connect_with(&options).await.map_err(cannot_open)?;
        check_is_ours(path, &mut connection).await?;
        let newest = MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0);
        let mut report = StoreReport { version: 0, newest, sessions: 0, workspaces: 0, damage: None };
        let damage: String =
            sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(&mut connection).await.map_err(cannot_open)?;
        report.damage = Some(damage).filter(|text| text != "ok");
        let is_empty = "SELECT count(*) FROM sqlite_schema WHERE name = 'sessions'";
        let tables: i64 = sqlx::query_scalar(is_empty).fetch_one(&mut connection).await.map_err(cannot_open)?;
        if tables > 0 {
            for (query, number) in [
                ("SELECT max(version) FROM _sqlx_migrations", &mut report.version),
                ("SELECT count(*) FROM sessions WHERE deleted_at IS NULL", &mut report.sessions),
                ("SELECT count(*) FROM workspaces", &mut report.workspaces),
            ] {
                *number = sqlx::query_scalar(query).fetch_one(&mut connection).await.map_err(cannot_open)?;
            }
        }
        connection.close().await.map_err(cannot_open)?;
        Ok(report)
    }

    /// Where the store is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// What a store is like.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreReport {
    /// The version of its tables; 0 when it has none yet.
    pub version: i64,
    /// The version that this wsm brings every store to.
    pub newest: i64,
    /// How many sessions it has.
    pub sessions: i64,
    /// How many workspace records it has.
    pub workspaces: i64,
    /// What a check of the file found wrong.
    pub damage: Option<String>,
}

/// Whether a connection can be used again. SQLite itself gives up a transaction when the disk is full; the connection does not
/// hear of that, and would refuse to begin another one ever after.
async fn is_clean(connection: &mut SqliteConnection) -> sqlx::Result<bool> {
    // Behind the rollback, if there is one.
    connection.ping().await?;
    Ok(!connection.is_in_transaction())
}

/// Checks that the file is a store, or nothing yet, and brings it up to date, however many processes do so at once.
async fn migrate(path: &Path, options: &SqliteConnectOptions) -> Result<()> {
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        match migrate_once(path, options).await {
            Err(error) if is_busy(&error) && Instant::now() < deadline => tokio::time::sleep(BUSY_PAUSE).await,
            answer => return answer,
        }
    }
}

/// Whether another process is in the way. SQLite waits for it by itself, but not where waiting could be a deadlock, as
/// when the log is turned on, or when the last process but this one is just closing the store.
fn is_busy(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<sqlx::Error>());
    let code = source.and_then(sqlx::Error::as_database_error).and_then(|error| error.code());
    // The low byte is the code, and those above it say more: 5 is SQLITE_BUSY.
    code.and_then(|code| code.parse::<u32>().ok()).is_some_and(|code| code & 0xff == 5)
}

async fn migrate_once(path: &Path, options: &SqliteConnectOptions) -> Result<()> {
    let mut connection = SqliteConnection::connect_with(options).await.map_err(|error| cannot_open(path, error))?;
    check_is_ours(path, &mut connection).await?;
    // Turning the log on can not wait for other connections the way that statements do, so it comes before all else.
    let mode = sqlx::query("PRAGMA journal_mode = WAL").execute(&mut connection).await;
    mode.map_err(|error| cannot_open(path, error))?;
    // One transaction around all migrations, so that of several processes that find a new file only one fills it.
    let mut transaction = connection.begin_with("BEGIN EXCLUSIVE").await.map_err(|error| cannot_open(path, error))?;
    match MIGRATIONS.run_direct(None, &mut *transaction, false).await {
        Ok(()) => {}
        Err(MigrateError::VersionMissing(_)) => return Err(newer(path)),
        Err(error) => return Err(cannot_open(path, error)),
    }
    transaction.commit().await.map_err(|error| cannot_open(path, error))?;
    connection.close().await.map_err(|error| cannot_open(path, error))
}

/// Reads without writing, so that a file that is not ours stays as it is.
async fn check_is_ours(path: &Path, connection: &mut SqliteConnection) -> Result<()> {
    // One transaction, or another process may fill a new file between two of the questions.
    let mut connection = connection.begin().await.map_err(|error| cannot_open(path, error))?;
    let application: i64 = sqlx::query_scalar("PRAGMA application_id")
        .fetch_one(&mut *connection)
        .await
        .map_err(|error| cannot_open(path, error))?;
    let tables: Vec<String> = sqlx::query_scalar("SELECT name FROM sqlite_schema WHERE type = 'table'")
        .fetch_all(&mut *connection)
        .await
        .map_err(|error| cannot_open(path, error))?;
    // A process that was killed right after it made the file leaves nothing, or this table and nothing in it.
    let empty = tables.iter().all(|table| table == "_sqlx_migrations");
    if application != APPLICATION_ID && !(application == 0 && empty) {
        let message = format!("`{}` is a database of another program, not a store of wsm", path.display());
        return Err(Error::invalid("store", message).with_code("not_a_store"));
    }
    if !tables.is_empty() {
        let latest: Option<i64> = sqlx::query_scalar("SELECT max(version) FROM _sqlx_migrations")
            .fetch_one(&mut *connection)
            .await
            .map_err(|error| cannot_open(path, error))?;
        if latest.is_some_and(|latest| !MIGRATIONS.version_exists(latest)) {
            return Err(newer(path));
        }
    }
    Ok(())
}

fn newer(path: &Path) -> Error {
    let message = format!(
        "the store `{}` was written by a newer wsm: use that one, or another store; nothing was changed",
        path.display()
    );
    Error::invalid("store", message).with_code("store_is_newer")
}

fn cannot_open(path: &Path, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    let path = path.display();
    let text = error.to_string();
    // SQLite's own words for SQLITE_NOTADB; sqlx hands the code out only inside of a database error.
    if text.contains("file is not a database") {
        let message = format!("`{path}` is not a store of wsm, nor a database at all; it was left as it is");
        return Error::invalid("store", message).with_code("not_a_store").with_source(error);
    }
    Error::new(ErrorKind::Backend, format!("the store `{path}` can not be opened"))
        .with_field("store")
        .with_source(error)
}

/// Turns a failed statement into the error that callers see.
fn failed(error: sqlx::Error) -> Error {
    let is = |code: &str| error.as_database_error().and_then(|error| error.code()).is_some_and(|it| it == code);
    let busy = matches!(&error, sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed) || is("5");
    let (kind, message) = if busy {
        (ErrorKind::Unavailable, "the store does not answer")
    } else if is("13") {
        (ErrorKind::Capacity, "the disk that the store is on is full")
    } else {
        (ErrorKind::Backend, "the store failed")
    };
    Error::new(kind, message).with_code("store").with_source(error)
}

const SESSION: &str = "SELECT * FROM sessions WHERE user_id = ? AND session_id = ?";

#[async_trait]
impl Store for SqliteStore {
    async fn claim_session(&self, claim: &SessionClaim) -> Result<Claimed> {
        let SessionClaim { scope, name, explicit, workspace, allow_foreign_owner } = claim;
        let mut transaction = self.pool.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
        let existing = sqlx::query(SESSION)
            .bind(scope.user_id.as_str())
            .bind(scope.session_id.as_str())
            .fetch_optional(&mut *transaction)
            .await
            .map_err(failed)?;
        if let Some(row) = existing {
            if row.get::<Option<i64>, _>("deleted_at").is_some() {
                let message = "a session of this id was deleted, and its workspace still exists: \
                               delete it again, or choose another id";
                return Err(Error::new(ErrorKind::Conflict, message)
                    .with_code("session_deleted")
                    .with_field("session_id"));
            }
            return Ok(Claimed::Existing(session(&row)?));
        }
        let workspace = ensure(&mut transaction, workspace, *allow_foreign_owner).await?;
        // Somebody who joins a workspace that was used before has lost nothing yet.
        let told = (workspace.generation > 0).then_some(workspace.generation);
        let created_at = now_in_millis();
        let seq = sqlx::query(
            "INSERT INTO sessions (user_id, session_id, agent_id, workspace_id, explicit, name, told_generation, created_at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(scope.user_id.as_str())
        .bind(scope.session_id.as_str())
        .bind(scope.agent_id.as_str())
        .bind(workspace.id.as_str())
        .bind(explicit)
        .bind(name)
        .bind(told.map(to_i64))
        .bind(millis(created_at))
        .execute(&mut *transaction)
        .await
        .map_err(failed)?
        .last_insert_rowid();
        transaction.commit().await.map_err(failed)?;
        Ok(Claimed::Created(SessionRecord {
            scope: scope.clone(),
            workspace_id: workspace.id,
            explicit: *explicit,
            name: name.clone(),
            told_generation: told,
            created_at,
            seq,
        }))
    }

    async fn session(&self, user: &UserId, id: &SessionId) -> Result<Option<SessionRecord>> {
        let row = sqlx::query("SELECT * FROM sessions WHERE user_id = ? AND session_id = ? AND deleted_at IS NULL")
            .bind(user.as_str())
            .bind(id.as_str())
            .fetch_optional(&self.pool)
            .await
            .map_err(failed)?;
        row.as_ref().map(session).transpose()
    }

    async fn sessions(&self, page: &SessionPage) -> Result<Vec<SessionRecord>> {
        let SessionPage { user, agent, after, limit } = page;
        let rows = sqlx::query(
            "SELECT * FROM sessions
             WHERE user_id = ?1 AND (?2 IS NULL OR agent_id = ?2) AND seq > ?3 AND deleted_at IS NULL
             ORDER BY seq LIMIT ?4",
        )
        .bind(user.as_str())
        .bind(agent.as_ref().map(|agent| agent.as_str()))
        .bind(after)
        .bind(limit)
        .fetch_all(&self.pool)
        .await
        .map_err(failed)?;
        rows.iter().map(session).collect()
    }

    async fn retire_session(&self, user: &UserId, id: &SessionId) -> Result<Retired> {
        let mut transaction = self.pool.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
        let row = sqlx::query(SESSION)
            .bind(user.as_str())
            .bind(id.as_str())
            .fetch_optional(&mut *transaction)
            .await
            .map_err(failed)?;
        let Some(row) = row else { return Ok(Retired::Unknown) };
        let record = session(&row)?;
        let own: i64 =
            sqlx::query_scalar("SELECT count(*) FROM workspaces WHERE workspace_id = ? AND policy = 'per_session'")
                .bind(record.workspace_id.as_str())
                .fetch_one(&mut *transaction)
                .await
                .map_err(failed)?;
        let retired = if own == 0 {
            sqlx::query("DELETE FROM sessions WHERE seq = ?")
                .bind(record.seq)
                .execute(&mut *transaction)
                .await
                .map_err(failed)?;
            Retired::Done(record.workspace_id)
        } else {
            sqlx::query("UPDATE sessions SET deleted_at = coalesce(deleted_at, ?) WHERE seq = ?")
                .bind(millis(now_in_millis()))
                .bind(record.seq)
                .execute(&mut *transaction)
                .await
                .map_err(failed)?;
            let others: i64 =
                sqlx::query_scalar("SELECT count(*) FROM sessions WHERE workspace_id = ? AND deleted_at IS NULL")
                    .bind(record.workspace_id.as_str())
                    .fetch_one(&mut *transaction)
                    .await
                    .map_err(failed)?;
            if others == 0 { Retired::Orphaned(record.workspace_id) } else { Retired::Done(record.workspace_id) }
        };
        transaction.commit().await.map_err(failed)?;
        Ok(retired)
    }

    async fn ensure_workspace(&self, record: &WorkspaceRecord, allow_foreign_owner: bool) -> Result<WorkspaceRecord> {
        let mut transaction = self.pool.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
        let record = ensure(&mut transaction, record, allow_foreign_owner).await?;
        transaction.commit().await.map_err(failed)?;
        Ok(record)
    }

    async fn workspace(&self, id: &WorkspaceId) -> Result<Vec<WorkspaceRecord>> {
        let rows = sqlx::query("SELECT * FROM workspaces WHERE workspace_id = ?")
            .bind(id.as_str())
            .fetch_all(&self.pool)
            .await
            .map_err(failed)?;
        rows.iter().map(workspace).collect()
    }

    async fn workspaces(&self) -> Result<Vec<WorkspaceRecord>> {
        let rows = sqlx::query("SELECT * FROM workspaces ORDER BY created_at, workspace_id")
            .fetch_all(&self.pool)
            .await
            .map_err(failed)?;
        rows.iter().map(workspace).collect()
    }

    async fn forget_workspace(&self, id: &WorkspaceId, backend: &str) -> Result<()> {
        let mut transaction = self.pool.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
        sqlx::query("DELETE FROM workspaces WHERE workspace_id = ? AND backend = ?")
            .bind(id.as_str())
            .bind(backend)
            .execute(&mut *transaction)
            .await
            .map_err(failed)?;
        sqlx::query("DELETE FROM sessions WHERE workspace_id = ? AND deleted_at IS NOT NULL")
            .bind(id.as_str())
            .execute(&mut *transaction)
            .await
            .map_err(failed)?;
        // The next workspace of that id counts its losses from the beginning.
        sqlx::query("UPDATE sessions SET told_generation = NULL WHERE workspace_id = ?")
            .bind(id.as_str())
            .execute(&mut *transaction)
            .await
            .map_err(failed)?;
        transaction.commit().await.map_err(failed)
    }

    async fn note_generation(&self, id: &WorkspaceId, backend: &str, generation: u64) -> Result<()> {
        sqlx::query(
            "UPDATE workspaces SET generation = ?3 WHERE workspace_id = ?1 AND backend = ?2 AND generation < ?3",
        )
        .bind(id.as_str())
        .bind(backend)
        .bind(to_i64(generation))
        .execute(&self.pool)
        .await
        .map_err(failed)?;
        Ok(())
    }

    async fn tell_generation(&self, user: &UserId, id: &SessionId, generation: u64) -> Result<Told> {
        let generation = to_i64(generation);
        let mut transaction = self.pool.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
        let told: Option<Option<i64>> =
            sqlx::query_scalar("SELECT told_generation FROM sessions WHERE user_id = ? AND session_id = ?")
                .bind(user.as_str())
                .bind(id.as_str())
                .fetch_optional(&mut *transaction)
                .await
                .map_err(failed)?;
        let answer = match told {
            Some(Some(told)) if told < generation => Told::Now,
            Some(None) => Told::Knew,
            Some(Some(_)) | None => return Ok(Told::Knew),
        };
        sqlx::query("UPDATE sessions SET told_generation = ? WHERE user_id = ? AND session_id = ?")
            .bind(generation)
            .bind(user.as_str())
            .bind(id.as_str())
            .execute(&mut *transaction)
            .await
            .map_err(failed)?;
        transaction.commit().await.map_err(failed)?;
        Ok(answer)
    }

    async fn ping(&self) -> Result<()> {
        sqlx::query("SELECT 1").execute(&self.pool).await.map_err(failed)?;
        Ok(())
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}

/// Makes sure that a workspace has a record. The owner of an id is the same on every backend.
async fn ensure(
    connection: &mut SqliteConnection,
    record: &WorkspaceRecord,
    allow_foreign_owner: bool,
) -> Result<WorkspaceRecord> {
    let WorkspaceRecord { id, first, backend, node, generation, policy, created_at } = record;
    let rows = sqlx::query("SELECT * FROM workspaces WHERE workspace_id = ?")
        .bind(id.as_str())
        .fetch_all(&mut *connection)
        .await
        .map_err(failed)?;
    let known: Vec<WorkspaceRecord> = rows.iter().map(workspace).collect::<Result<_>>()?;
    if !allow_foreign_owner && known.iter().any(|known| *known.owner() != first.user_id) {
        return Err(foreign_owner(id));
    }
    if let Some(known) = known.into_iter().find(|known| known.backend == *backend) {
        return Ok(known);
    }
    sqlx::query(
        "INSERT INTO workspaces
         (workspace_id, backend, user_id, agent_id, session_id, node, generation, policy, created_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(id.as_str())
    .bind(backend)
    .bind(first.user_id.as_str())
    .bind(first.agent_id.as_str())
    .bind(first.session_id.as_str())
    .bind(node)
    .bind(to_i64(*generation))
    .bind(policy.map(IsolationPolicy::as_str))
    .bind(millis(*created_at))
    .execute(connection)
    .await
    .map_err(failed)?;
    Ok(record.clone())
}

fn session(row: &SqliteRow) -> Result<SessionRecord> {
    Ok(SessionRecord {
        scope: scope(row)?,
        workspace_id: WorkspaceId::new(row.get::<&str, _>("workspace_id"))?,
        explicit: row.get("explicit"),
        name: row.get("name"),
        told_generation: row.get::<Option<i64>, _>("told_generation").map(i64::unsigned_abs),
        created_at: time(row.get("created_at")),
        seq: row.get("seq"),
    })
}

fn workspace(row: &SqliteRow) -> Result<WorkspaceRecord> {
    Ok(WorkspaceRecord {
        id: WorkspaceId::new(row.get::<&str, _>("workspace_id"))?,
        first: scope(row)?,
        backend: row.get("backend"),
        node: row.get("node"),
        generation: row.get::<i64, _>("generation").unsigned_abs(),
        policy: row.get::<Option<&str>, _>("policy").map(IsolationPolicy::from_str).transpose()?,
        created_at: time(row.get("created_at")),
    })
}

fn scope(row: &SqliteRow) -> Result<Scope> {
    let text = |column| row.get::<&str, _>(column);
    Ok(Scope::new(text("user_id"), text("agent_id"), text("session_id"))?)
}

fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn time(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis.unsigned_abs())
}

fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(user: &str, session: &str, workspace: &str, policy: Option<IsolationPolicy>) -> SessionClaim {
        let scope = Scope::new(user, "agent", session).unwrap();
        let workspace =
            WorkspaceRecord::new(WorkspaceId::new(workspace).unwrap(), scope.clone(), "memory", "here", policy);
        SessionClaim { scope, name: None, explicit: policy.is_none(), workspace, allow_foreign_owner: false }
    }

    async fn store() -> (tempfile::TempDir, SqliteStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&dir.path().join("deep/er/wsm.db")).await.unwrap();
        (dir, store)
    }

    fn created(claimed: Claimed) -> SessionRecord {
        match claimed {
            Claimed::Created(record) => record,
            Claimed::Existing(record) => panic!("{record:?} existed"),
        }
    }

    #[tokio::test]
    async fn what_was_stored_is_found_after_a_reopen() {
        let (_dir, store) = store().await;
        let record = created(store.claim_session(&claim("ann", "s1", "w1", None)).await.unwrap());
        let path = store.path().to_owned();
        // Not closed, as after a kill.
        drop(store);
        let store = SqliteStore::open(&path).await.unwrap();
        let (user, session) = (&record.scope.user_id, &record.scope.session_id);
        assert_eq!(store.session(user, session).await.unwrap(), Some(record.clone()));
        assert_eq!(store.workspaces().await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_disk_that_was_full_is_used_again() {
        let (_dir, store) = store().await;
        let mut all = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            let mut connection = store.pool.acquire().await.unwrap();
            // No page more than there are.
            sqlx::query("PRAGMA max_page_count = 1").execute(&mut *connection).await.unwrap();
            all.push(connection);
        }
        drop(all);
        let mut refused = 0;
        for number in 0..200 {
            let session = format!("s{number}");
            match store.claim_session(&claim("ann", &session, &session, None)).await {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!((error.kind(), error.code()), (ErrorKind::Capacity, "store"), "{}", error.report());
                    refused += 1;
                }
            }
        }
        // The connections that had no room are gone, and those that came after them have.
        assert!((1..=MAX_CONNECTIONS).contains(&refused), "{refused}");
    }

    #[tokio::test]
    async fn nobody_else_reads_it() {
        use std::os::unix::fs::PermissionsExt;

        let (_dir, store) = store().await;
        created(store.claim_session(&claim("ann", "s", "w", None)).await.unwrap());
        let _lock = crate::store::StoreLock::acquire(store.path()).unwrap();
        let files: Vec<_> = std::fs::read_dir(store.path().parent().unwrap()).unwrap().map(Result::unwrap).collect();
        assert_eq!(files.len(), 4, "the store, its log, its index and its lock");
        for file in files {
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
        }
    }

    #[tokio::test]
    async fn claims_at_once_from_two_stores_end_with_one_record() {
        let (_dir, first) = store().await;
        let second = SqliteStore::open(first.path()).await.unwrap();
        for round in 0..20 {
            let claim = claim("ann", &format!("s{round}"), "w", None);
            let (a, b) = tokio::join!(first.claim_session(&claim), second.claim_session(&claim));
            let made = [a.unwrap(), b.unwrap()].iter().filter(|c| matches!(c, Claimed::Created(_))).count();
            assert_eq!(made, 1);
        }
        assert_eq!(first.workspaces().await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn many_openers_of_a_new_file_agree() {
        for _ in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("wsm.db");
            // Those that close at once are in the way of those that still open.
            let open = || async {
                let store = SqliteStore::open(&path).await?;
                store.ping().await?;
                store.close().await;
                Ok::<_, Error>(())
            };
            for opened in futures::future::join_all((0..8).map(|_| open())).await {
                opened.unwrap();
            }
        }
    }

    /// The log can not be turned on while somebody is about to write, and SQLite does not wait for that.
    #[tokio::test]
    async fn an_opener_waits_for_one_that_is_filling_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wsm.db");
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
        let mut other = SqliteConnection::connect_with(&options).await.unwrap();
        let filling = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
        let mut opening = std::pin::pin!(SqliteStore::open(&path));
        let early = tokio::time::timeout(Duration::from_millis(100), &mut opening).await;
        assert!(early.is_err(), "{early:?}");
        filling.rollback().await.unwrap();
        opening.await.unwrap().ping().await.unwrap();
    }

    #[tokio::test]
    async fn somebody_elses_workspace_is_refused_and_nothing_is_written() {
        let (_dir, store) = store().await;
        store.claim_session(&claim("ann", "s1", "w1", None)).await.unwrap();
        let theirs = claim("bob", "s1", "w1", None);
        let error = store.claim_session(&theirs).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::PermissionDenied, "foreign_owner"));
        assert!(!format!("{error:?}").contains("ann"));
        assert_eq!(store.session(&theirs.scope.user_id, &theirs.scope.session_id).await.unwrap(), None);
        let allowed = SessionClaim { allow_foreign_owner: true, ..theirs };
        store.claim_session(&allowed).await.unwrap();
    }

    #[tokio::test]
    async fn a_session_of_its_own_workspace_leaves_a_mark_until_the_workspace_is_gone() {
        let (_dir, store) = store().await;
        let own = claim("ann", "s1", "w1", Some(IsolationPolicy::PerSession));
        let guest = claim("ann", "s2", "w1", None);
        store.claim_session(&own).await.unwrap();
        store.claim_session(&guest).await.unwrap();
        let user = &own.scope.user_id;
        let w1 = own.workspace.id.clone();
        assert_eq!(store.retire_session(user, &own.scope.session_id).await.unwrap(), Retired::Done(w1.clone()));
        assert_eq!(store.claim_session(&own).await.unwrap_err().code(), "session_deleted");
        assert_eq!(store.retire_session(user, &guest.scope.session_id).await.unwrap(), Retired::Orphaned(w1.clone()));
        // Asking again is how a failed destroy is tried again.
        assert_eq!(store.retire_session(user, &own.scope.session_id).await.unwrap(), Retired::Orphaned(w1.clone()));
        store.forget_workspace(&w1, "memory").await.unwrap();
        assert_eq!(store.retire_session(user, &own.scope.session_id).await.unwrap(), Retired::Unknown);
        created(store.claim_session(&own).await.unwrap());
    }

    #[tokio::test]
    async fn shared_workspaces_outlive_their_sessions() {
        let (_dir, store) = store().await;
        let shared = claim("ann", "s1", "w1", Some(IsolationPolicy::PerAgent));
        store.claim_session(&shared).await.unwrap();
        let retired = store.retire_session(&shared.scope.user_id, &shared.scope.session_id).await.unwrap();
        assert_eq!(retired, Retired::Done(shared.workspace.id.clone()));
        assert_eq!(store.workspace(&shared.workspace.id).await.unwrap().len(), 1);
        created(store.claim_session(&shared).await.unwrap());
    }

    #[tokio::test]
    async fn each_session_is_told_of_a_loss_once() {
        let (_dir, store) = store().await;
        let record = created(store.claim_session(&claim("ann", "s1", "w1", None)).await.unwrap());
        let tell = |generation| store.tell_generation(&record.scope.user_id, &record.scope.session_id, generation);
        assert_eq!(tell(2).await.unwrap(), Told::Knew, "the first use is no loss");
        let (a, b) = tokio::join!(tell(3), tell(3));
        let told = [a.unwrap(), b.unwrap()].into_iter().filter(|told| *told == Told::Now).count();
        assert_eq!(told, 1);
        store.note_generation(&record.workspace_id, "memory", 3).await.unwrap();
        let late = created(store.claim_session(&claim("ann", "s2", "w1", None)).await.unwrap());
        assert_eq!(late.told_generation, Some(3), "a later session has lost nothing");
    }

    #[tokio::test]
    async fn pages_follow_the_order_of_creation() {
        let (_dir, store) = store().await;
        for session in ["c", "a", "b"] {
            store.claim_session(&claim("ann", session, "w", None)).await.unwrap();
        }
        store.claim_session(&claim("bob", "x", "v", None)).await.unwrap();
        let page = |after| SessionPage { user: UserId::new("ann").unwrap(), agent: None, after, limit: 2 };
        let first = store.sessions(&page(0)).await.unwrap();
        let second = store.sessions(&page(first[1].seq)).await.unwrap();
        let names: Vec<_> = first.iter().chain(&second).map(|s| s.scope.session_id.as_str()).collect();
        assert_eq!(names, ["c", "a", "b"]);
    }

    #[tokio::test]
    async fn what_is_not_a_store_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().join("text");
        std::fs::write(&text, "not a database, but long enough to have a header of sixteen bytes\n".repeat(100))
            .unwrap();
        let other = dir.path().join("other.db");
        let mut connection =
            SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(&other).create_if_missing(true))
                .await
                .unwrap();
        sqlx::query("CREATE TABLE mine (x)").execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        for path in [text, other] {
            let before = std::fs::read(&path).unwrap();
            let error = SqliteStore::open(&path).await.unwrap_err();
            assert_eq!((error.code(), error.field()), ("not_a_store", Some("store")), "{error:?}");
            assert!(std::fs::read(&path).unwrap() == before);
        }
    }

    #[tokio::test]
    async fn a_newer_store_is_refused_and_left_alone() {
        let (_dir, store) = store().await;
        sqlx::query("INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9999, 'x', 1, x'00', 0)")
            .execute(&store.pool)
            .await
            .unwrap();
        let error = SqliteStore::open(store.path()).await.unwrap_err();
        assert_eq!(error.code(), "store_is_newer");
    }
}
