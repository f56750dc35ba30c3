// Drives the fake with the official JavaScript SDK: what works here works as the SDK expects it to.
//
// Wants E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL in its environment, and in E2B_SDK the directory that has the SDK's
// `node_modules`. Prints `ok` with a name for what holds, and `FAILED` with a name for what does not. Its last line begins
// with `end`.

import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { createRequire } from 'node:module'
import { setTimeout as sleep } from 'node:timers/promises'

const require = createRequire(`${process.env.E2B_SDK}/`)
const { AuthenticationError, CommandExitError, FileType, InvalidArgumentError, NotFoundError, Sandbox, TimeoutError } =
  require('e2b')

const create = (options = {}) => Sandbox.create({ timeoutMs: 120_000, ...options })

async function allPages(paginator) {
  const pages = []
  while (paginator.hasNext) pages.push(await paginator.nextItems())
  return pages
}

async function eventually(condition, patience = 5000) {
  const end = Date.now() + patience
  while (Date.now() < end) {
    if (await condition()) return
    await sleep(20)
  }
  assert.fail('it did not happen')
}

async function fails(kind, work) {
  try {
    await work()
  } catch (error) {
    assert.ok(error instanceof kind, `expected ${kind.name}, got ${error}`)
    return error
  }
  assert.fail(`expected ${kind.name}`)
}

const cases = {
  async create_info_kill() {
    const made = await create({ metadata: { app: 'driver' }, envs: { GLOBAL: 'g' } })
    const info = await made.getInfo()
    assert.equal(info.sandboxId, made.sandboxId)
    assert.equal(info.state, 'running')
    assert.deepEqual(info.metadata, { app: 'driver' })
    assert.ok(await made.isRunning())
    assert.equal((await made.commands.run('echo $GLOBAL')).stdout, 'g\n')
    assert.equal(await made.kill(), true)
    assert.equal(await made.isRunning(), false)
    assert.equal(await Sandbox.kill(made.sandboxId), false)
    await fails(NotFoundError, () => Sandbox.connect(made.sandboxId))
    await fails(AuthenticationError, () => create({ apiKey: `e2b_${'f'.repeat(40)}` }))
  },

  async list_by_pages_and_metadata() {
    const mark = { run: `${randomUUID()} /ä&=` }
    const made = []
    for (let number = 0; number < 3; number++) {
      made.push(await create({ metadata: { ...mark, number: `${number}` } }))
    }
    const ids = made.map((sandbox) => sandbox.sandboxId)
    const pages = await allPages(Sandbox.list({ query: { metadata: mark }, limit: 2 }))
    assert.deepEqual(pages.map((page) => page.length), [2, 1])
    assert.deepEqual(pages.flat().map((info) => info.sandboxId), ids.toReversed())
    await made[1].pause()
    const paused = await allPages(Sandbox.list({ query: { metadata: mark, state: ['paused'] } }))
    assert.deepEqual(paused.flat().map((info) => info.sandboxId), [ids[1]])
    for (const sandbox of made) await sandbox.kill()
  },

  async pause_connect_keeps_files_and_processes() {
    const made = await create()
    await made.files.write('/home/user/kept', 'yes')
    const background = await made.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
    background.wait().catch(() => {})
    assert.equal(await made.pause(), true)
    assert.equal(await made.pause(), false)
    assert.equal((await made.getInfo()).state, 'paused')
    const again = await Sandbox.connect(made.sandboxId, { timeoutMs: 60_000 })
    assert.equal(await again.files.read('/home/user/kept'), 'yes')
    assert.ok((await again.commands.list()).some((process) => process.pid === background.pid))
    await again.kill()
  },

  async timeouts() {
    const made = await create()
    await made.setTimeout(1000)
    await eventually(async () => !(await made.isRunning()))
    await fails(NotFoundError, () => made.getInfo())
  },

  async output_and_exit_code(box) {
    const result = await box.commands.run('echo out; echo err >&2')
    assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\n', 'err\n', 0])
    const error = await fails(CommandExitError, () => box.commands.run('echo o; exit 7'))
    assert.deepEqual([error.exitCode, error.stdout], [7, 'o\n'])
    const parts = []
    await box.commands.run('echo 1; sleep 0.1; echo 2', { onStdout: (part) => parts.push(part) })
    assert.deepEqual(parts, ['1\n', '2\n'])
    const big = await box.commands.run("head -c 3000000 /dev/zero | tr '\\0' x")
    assert.equal(big.stdout.length, 3_000_000)
  },

  async environment_directory_user(box) {
    const result = await box.commands.run('echo $A; pwd; whoami', { envs: { A: '1 ä' }, cwd: '/tmp' })
    assert.equal(result.stdout, '1 ä\n/tmp\nuser\n')
    assert.equal((await box.commands.run('whoami', { user: 'root' })).stdout, 'root\n')
    await fails(InvalidArgumentError, () => box.commands.run('true', { cwd: '/no/such' }))
    await fails(AuthenticationError, () => box.commands.run('true', { user: 'nosuch' }))
  },

  async stdin_background_kill(box) {
    const cat = await box.commands.run('cat', { background: true, stdin: true, timeoutMs: 0 })
    await box.commands.sendStdin(cat.pid, 'hello\n')
    await box.commands.closeStdin(cat.pid)
    assert.equal((await cat.wait()).stdout, 'hello\n')
    const slept = await box.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
    const ended = fails(CommandExitError, () => slept.wait())
    assert.equal(await slept.kill(), true)
    const error = await ended
    assert.deepEqual([error.exitCode, error.error], [-1, 'signal: killed'])
    assert.equal(await box.commands.kill(slept.pid), false)
  },

  async timeout_of_a_command(box) {
    await fails(TimeoutError, () => box.commands.run('sleep 1000', { timeoutMs: 500 }))
  },

  async reconnect_to_a_command(box) {
    const script = 'for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.1; done'
    const command = await box.commands.run(script, { background: true, timeoutMs: 0 })
    command.wait().catch(() => {})
    await command.disconnect()
    await sleep(300)
    const again = await box.commands.connect(command.pid)
    const { stdout, exitCode } = await again.wait()
    assert.equal(exitCode, 0)
    assert.ok(stdout.endsWith('9\n') && !stdout.startsWith('1\n'), stdout)
  },

  async terminal(box) {
    let seen = ''
    const onData = (data) => {
      seen += Buffer.from(data).toString()
    }
    const pty = await box.pty.create({ cols: 80, rows: 24, onData, timeoutMs: 20_000 })
    await box.pty.resize(pty.pid, { cols: 90, rows: 30 })
    await box.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit 0\n'))
    await pty.wait()
    assert.match(seen, /30 90/)
  },

  async files_write_and_read(box) {
    const text = 'text ä €\n'
    assert.equal((await box.files.write('/home/user/a/b/text', text)).path, '/home/user/a/b/text')
    for (const path of ['/home/user/a/b/text', 'a/b/text', '~/a/b/text']) {
      assert.equal(await box.files.read(path), text)
    }
    const big = randomBytes(5 << 20)
    for (const options of [{}, { useOctetStream: true }]) {
      await box.files.write('/tmp/big', new Blob([big]), options)
      assert.ok(big.equals(Buffer.from(await box.files.read('/tmp/big', { format: 'bytes' }))))
    }
    const pieces = []
    for await (const piece of await box.files.read('/tmp/big', { format: 'stream' })) pieces.push(piece)
    assert.ok(big.equals(Buffer.concat(pieces)))
    const names = ['/tmp/many/one', '/tmp/many/two words', '/tmp/many/drei ä$x%20+&?#']
    await box.files.write(names.map((path) => ({ path, data: path })))
    for (const name of names) assert.equal(await box.files.read(name), name)
    assert.deepEqual((await box.files.list('/tmp/many')).map((entry) => entry.path).toSorted(), names.toSorted())
  },

  async files_list_stat_move_remove(box) {
    const base = '/home/user/tree'
    assert.equal(await box.files.makeDir(`${base}/d/e`), true)
    assert.equal(await box.files.makeDir(`${base}/d/e`), false)
    await box.files.write(`${base}/f`, 'xyz')
    const info = await box.files.getInfo(`${base}/f`)
    assert.deepEqual([info.size, info.permissions, info.type], [3, '-rw-r--r--', FileType.FILE])
    const deep = (await box.files.list(base, { depth: 2 })).map((entry) => entry.path)
    assert.deepEqual(deep.toSorted(), [`${base}/d`, `${base}/d/e`, `${base}/f`])
    assert.equal((await box.files.rename(`${base}/f`, `${base}/g`)).path, `${base}/g`)
    assert.deepEqual([await box.files.exists(`${base}/f`), await box.files.exists(`${base}/g`)], [false, true])
    await box.files.remove(base)
    await fails(NotFoundError, () => box.files.read(`${base}/g`))
    await fails(NotFoundError, () => box.files.list(base))
  },

  async files_watched(box) {
    await box.files.makeDir('/home/user/watched')
    const seen = []
    const handle = await box.files.watchDir('/home/user/watched', (event) => seen.push(event))
    await box.files.write('/home/user/watched/new', 'x')
    await eventually(() => ['create', 'write'].every((type) => seen.some((event) => event.type === type)))
    await handle.stop()
  },
}

const box = await create({ timeoutMs: 600_000 })
let failed = 0
for (const [name, run] of Object.entries(cases)) {
  try {
    await run(box)
    console.log(`ok ${name}`)
  } catch (error) {
    console.error(error)
    console.log(`FAILED ${name}`)
    failed += 1
  }
}
await box.kill()
console.log(`end: ${Object.keys(cases).length} cases, ${failed} failed`)
// Streams that nobody ended may be open still.
process.exit(failed ? 1 : 0)
