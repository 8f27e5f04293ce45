-- Train a residual network with Torch7 on images that the script makes itself, over all GPUs of this machine.
-- Each step prints a line as the usual Torch7 examples do: Epoch: [1][2/100]  Time 0.208  Err 6.9078

require 'torch'
require 'nn'
require 'optim'
require 'cutorch'
require 'cunn'
require 'cudnn'

local WARM_UP = 5 -- steps that are not timed

local function parse()
   local cmd = torch.CmdLine()
   cmd:text('Train a residual network on synthetic images')
   cmd:option('-batch', 512, 'images a step, over all GPUs together')
   cmd:option('-edge', 224, 'pixels of an edge')
   cmd:option('-classes', 1000, 'classes')
   cmd:option('-epochs', 2, 'epochs')
   cmd:option('-steps', 100, 'steps of an epoch')
   cmd:option('-rate', 0.05, 'learning rate')
   cmd:option('-seed', 0, 'seed')
   return cmd:parse(arg or {})
end

local function convolution(from, to, kernel, stride)
   local pad = math.floor(kernel / 2)
   return cudnn.SpatialConvolution(from, to, kernel, kernel, stride, stride, pad, pad):noBias()
end

-- Two 3x3 convolutions and a shortcut around them.
local function block(from, to, stride)
   local main = nn.Sequential()
      :add(convolution(from, to, 3, stride)):add(cudnn.SpatialBatchNormalization(to)):add(cudnn.ReLU(true))
      :add(convolution(to, to, 3, 1)):add(cudnn.SpatialBatchNormalization(to))
   local around = nn.Identity()
   if from ~= to or stride ~= 1 then
      around = nn.Sequential():add(convolution(from, to, 1, stride)):add(cudnn.SpatialBatchNormalization(to))
   end
   return nn.Sequential():add(nn.ConcatTable():add(main):add(around)):add(nn.CAddTable(true)):add(cudnn.ReLU(true))
end

-- ResNet-18.
local function network(classes)
   local net = nn.Sequential()
      :add(convolution(3, 64, 7, 2)):add(cudnn.SpatialBatchNormalization(64)):add(cudnn.ReLU(true))
      :add(cudnn.SpatialMaxPooling(3, 3, 2, 2, 1, 1))
   local from = 64
   for stage, to in ipairs({64, 128, 256, 512}) do
      net:add(block(from, to, stage == 1 and 1 or 2)):add(block(to, to, 1))
      from = to
   end
   net:add(nn.Mean(4)):add(nn.Mean(3)):add(nn.Linear(512, classes))
   return net
end

-- A copy of the network on every GPU, each with its share of the batch.
local function spread(net, gpus)
   if gpus == 1 then return net:cuda() end
   local table = nn.DataParallelTable(1, true, true)
   for gpu = 1, gpus do
      cutorch.withDevice(gpu, function() table:add(net:clone():cuda(), gpu) end)
   end
   return table:cuda()
end

local function main()
   local opt = parse()
   local gpus = cutorch.getDeviceCount()
   if gpus == 0 then error('Torch7 found no GPU: is the driver there, and the container started with GPUs?') end
   if opt.batch % gpus ~= 0 then error(string.format('%d GPUs cannot share a batch of %d', gpus, opt.batch)) end
   torch.setdefaulttensortype('torch.FloatTensor')
   torch.manualSeed(opt.seed)
   cutorch.manualSeedAll(opt.seed)
   cudnn.benchmark = true
   print(string.format('Torch7 on %d GPUs', gpus))

   local model = spread(network(opt.classes), gpus)
   local criterion = nn.CrossEntropyCriterion():cuda()
   local images = torch.FloatTensor(opt.batch, 3, opt.edge, opt.edge):uniform(-1, 1):cuda()
   local labels = torch.FloatTensor(opt.batch):random(1, opt.classes):cuda()
   local parameters, gradients = model:getParameters()
   local state = {learningRate = opt.rate, momentum = 0.9, dampening = 0, weightDecay = 1e-4}

   local function evaluate()
      model:zeroGradParameters()
      local loss = criterion:forward(model:forward(images), labels)
      model:backward(images, criterion:backward(model.output, labels))
      return loss, gradients
   end

   local timer, timed, seconds = torch.Timer(), 0, 0
   for epoch = 1, opt.epochs do
      for step = 1, opt.steps do
         timer:reset()
         local _, losses = optim.sgd(evaluate, parameters, state)
         cutorch.synchronizeAll()
         local took = timer:time().real
         if (epoch - 1) * opt.steps + step > WARM_UP then
            timed, seconds = timed + 1, seconds + took
         end
         print(string.format('Epoch: [%d][%d/%d]  Time %.3f  Err %.4f', epoch, step, opt.steps, took, losses[1]))
         io.flush()
      end
   end
   if timed > 0 then print(string.format('finished: %.1f images/s', timed * opt.batch / seconds)) end
   if os.execute('mkdir -p outputs') then
      torch.save('outputs/model.t7', model:clearState())
   end
end

main()
